//! Tests of the kit as a whole, on a paused clock: real actix actors, nodes joined by a transport in memory.

mod asks;
mod children;
mod lanes;
mod loopback;
mod nodes;
mod probe;
mod references;
mod shutdown;
mod supervision;
mod timers;

use std::time::Duration;

/// Lets everything run that can: the paused clock moves when all is idle.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
