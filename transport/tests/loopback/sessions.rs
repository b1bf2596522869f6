//! TR-1 to TR-6 over real connections.

use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, NodeId, WorkerId};
use elastic_runtime::transport::{
    Conversation, LinkEvent, LossReason, SendErrorReason, Transport, TransportEvent,
};
use elastic_transport::ConnectOptions;

use crate::harness::*;

#[test]
fn a_node_joins_talks_and_leaves() {
    run(async {
        let driver = Driver::start();
        let client = driver.join("a").await;
        assert_eq!(client.driver, driver_id());
        assert_eq!(client.events.links(), [LinkEvent::Up]);
        driver.events.until_link("Up", |event| *event == LinkEvent::Up).await;

        client.send(Conversation::Control, &b"hello"[..]);
        driver.events.until("a frame", |all| Events::frame_count(all) == 1).await;
        let back = driver.transport.send(&client.id(), Conversation::Control, Bytes::from("hi"));
        back.expect("a session stands");
        client.events.until("an answer", |all| Events::frame_count(all) == 1).await;
        assert_eq!(client.events.frames(Conversation::Control), ["hi"]);

        client.transport.shutdown("done", Duration::from_secs(1)).await;
        let closed = LossReason::Closed("done".to_owned());
        let lost = |event: &LinkEvent| matches!(event, LinkEvent::Lost { reason, .. } if *reason == closed);
        driver.events.until_link("Lost", lost).await;
        let gone = driver.transport.send(&client.id(), Conversation::Control, Bytes::new());
        assert_eq!(gone.expect_err("it left").reason, SendErrorReason::NoSession);
    });
}
