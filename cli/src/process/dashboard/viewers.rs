//! The open pages, each with a bounded queue of news that it has not taken yet. A page that does not take them is cut
//! off, and its browser connects again if it lives. Used by `server` and `follow`.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use elastic_observe::PageTopic;
use hyper::body::{Body, Bytes, Frame};
use tokio::sync::{Notify, mpsc};

/// Most pages at a time.
pub(super) const VIEWERS_MAX: usize = 16;

/// Most pieces of news that wait for one page.
const PIECES_QUEUED_MAX: usize = 32;

/// The server's state of a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// Whether it is an open page's, which has no end of its own.
    pub(super) is_viewer: Cell<bool>,
    /// Signals that the connection is to be cut.
    pub(super) cut: Notify,
}

#[derive(Debug)]
struct Viewer {
    news: mpsc::Sender<Bytes>,
    connection: Rc<ConnectionState>,
}

/// All open pages.
#[derive(Debug, Default)]
pub(super) struct Viewers(RefCell<Vec<Viewer>>);

impl Viewers {
    /// Whether nobody looks.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Adds a page, which gets `first` before everything else; none if there are too many.
    pub(super) fn add(
        &self,
        connection: &Rc<ConnectionState>,
        first: &[PageTopic],
    ) -> Option<ViewerNews> {
        let mut viewers = self.0.borrow_mut();
        viewers.retain(|viewer| !viewer.news.is_closed());
        if viewers.len() >= VIEWERS_MAX {
            return None;
        }
        let (news, taken) = mpsc::channel(PIECES_QUEUED_MAX);
        news.try_send(in_server_sent_events(first)).ok()?;
        connection.is_viewer.set(true);
        viewers.push(Viewer { news, connection: Rc::clone(connection) });
        Some(ViewerNews(taken))
    }

    /// Sends topics to all pages, and cuts off those that stand still.
    pub(super) fn tell(&self, topics: &[PageTopic]) {
        if topics.is_empty() {
            return;
        }
        let news = in_server_sent_events(topics);
        self.0.borrow_mut().retain(|viewer| {
            let is_taken = viewer.news.try_send(news.clone()).is_ok();
            if !is_taken {
                viewer.connection.cut.notify_one();
            }
            is_taken
        });
    }
}

/// Topics in the format of server-sent events. JSON has no line breaks of its own.
fn in_server_sent_events(topics: &[PageTopic]) -> Bytes {
    let mut text = String::new();
    for PageTopic { name, json } in topics {
        text.push_str("event: ");
        text.push_str(name);
        text.push_str("\ndata: ");
        text.push_str(json);
        text.push_str("\n\n");
    }
    Bytes::from(text)
}

/// News that a page has not taken yet: the body of its answer, which ends when the page is cut off.
#[derive(Debug)]
pub(super) struct ViewerNews(mpsc::Receiver<Bytes>);

impl Body for ViewerNews {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|news| news.map(|news| Ok(Frame::data(news))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(json: &str) -> [PageTopic; 1] {
        [PageTopic { name: "status", json: json.to_owned() }]
    }

    #[test]
    fn a_page_that_stands_still_is_cut_off_and_another_one_gets_everything() {
        let viewers = Viewers::default();
        let (stuck, live) = (Rc::default(), Rc::default());
        let _news = viewers.add(&stuck, &topic("0")).expect("there is room");
        let mut taken = viewers.add(&live, &topic("0")).expect("there is room");
        for number in 0..100 {
            viewers.tell(&topic(&number.to_string()));
            while taken.0.try_recv().is_ok() {}
        }
        assert_eq!(viewers.0.borrow().len(), 1);
        assert!(Rc::ptr_eq(&viewers.0.borrow()[0].connection, &live));
        drop(taken);
        viewers.tell(&topic("1"));
        assert!(viewers.is_empty(), "it is gone");
    }

    #[test]
    fn the_number_of_pages_is_bounded() {
        let viewers = Viewers::default();
        let open: Vec<_> =
            (0..VIEWERS_MAX).filter_map(|_| viewers.add(&Rc::default(), &topic("0"))).collect();
        assert_eq!(open.len(), VIEWERS_MAX);
        assert!(viewers.add(&Rc::default(), &topic("0")).is_none());
        drop(open);
        assert!(viewers.add(&Rc::default(), &topic("0")).is_some());
    }

    #[test]
    fn news_are_server_sent_events() {
        let text = in_server_sent_events(&topic(r#"{"a":"b\nc"}"#));
        assert_eq!(&text[..], b"event: status\ndata: {\"a\":\"b\\nc\"}\n\n");
    }
}
