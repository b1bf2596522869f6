//! Lookups of the names of drivers. The address at which a driver was met last is tried, too, so that a name server
//! that hangs or fails does not keep a node from a driver that has not moved. Used by the dialer.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::peers::addresses::each_once;
use crate::peers::search::ADDRESSES_MAX;
use crate::quic::settings::HANDSHAKE_DEADLINE;

/// Time in which names are to be resolved where an address is known without them.
const RESOLVED_WITHIN: Duration = Duration::from_millis(500);

type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>>>>;

/// Resolves the names of drivers. A name whose lookup has not answered is not asked for again.
pub(crate) struct Lookups {
    begin: fn(&str) -> Lookup,
    under_way: BTreeMap<String, Lookup>,
}

impl Default for Lookups {
    fn default() -> Self {
        Self { begin: ask_the_system, under_way: BTreeMap::new() }
    }
}

/// Asks the system, which blocks a thread for each name until it has answered. No runtime owns the thread: the process ends
/// without it.
fn ask_the_system(name: &str) -> Lookup {
    let name = name.to_owned();
    let (tell, told) = oneshot::channel();
    let look = move || {
        let found = name.to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect());
        // The receiver is gone with its node.
        let _ = tell.send(found);
    };
    let begun = std::thread::Builder::new().name("resolve".to_owned()).spawn(look);
    Box::pin(async move {
        begun?;
        told.await.unwrap_or_else(|_| Err(io::Error::other("the thread that resolves it is gone")))
    })
}

impl Lookups {
    /// The addresses of these `HOST:PORT`, each once, and the one at which a driver was `met` last; and why a name has none.
    pub(crate) async fn addresses(
        &mut self,
        names: &[String],
        met: Option<SocketAddr>,
    ) -> (Vec<SocketAddr>, Option<String>) {
        let literal = |name: &String| name.parse::<SocketAddr>().ok();
        for name in names.iter().filter(|name| literal(name).is_none()) {
            self.under_way.entry(name.clone()).or_insert_with(|| (self.begin)(name));
        }
        let is_known = met.is_some() || names.iter().any(|name| literal(name).is_some());
        let within = if is_known { RESOLVED_WITHIN } else { HANDSHAKE_DEADLINE };
        let mut answers = BTreeMap::new();
        // A lookup that has not answered by then is looked at again in the next search.
        let _ = timeout(within, self.answered(&mut answers)).await;
        let mut all = Vec::new();
        let mut why = None;
        for name in names {
            let found = match (literal(name), answers.remove(name)) {
                (Some(address), _) => vec![address],
                (None, Some(Ok(found))) => found,
                (None, Some(Err(error))) => {
                    why = Some(format!("name not resolved: {error}"));
                    continue;
                }
                (None, None) => {
                    why = Some("name not resolved: no answer yet".to_owned());
                    continue;
                }
            };
            all.extend(found);
        }
        (each_once(all.into_iter().chain(met)), why)
    }

    /// Waits until every lookup has answered.
    async fn answered(&mut self, answers: &mut BTreeMap<String, io::Result<Vec<SocketAddr>>>) {
        poll_fn(|context| {
            self.under_way.retain(|name, lookup| match lookup.as_mut().poll(context) {
                Poll::Ready(answer) => {
                    answers.insert(name.clone(), answer);
                    false
                }
                Poll::Pending => true,
            });
            if self.under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn s_5_a_name_server_that_hangs_keeps_nobody_from_the_address_where_a_driver_was_met() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let begin = |_: &str| -> Lookup {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::pending())
        };
        run(async {
            let mut lookups = Lookups { begin, ..Lookups::default() };
            let drivers = names(&["driver:1"]);
            let (found, why) = lookups.addresses(&drivers, None).await;
            assert!(found.is_empty() && why.is_some_and(|why| why.contains("no answer yet")));
            let begun = tokio::time::Instant::now();
            for _search in 0..10 {
                let found = lookups.addresses(&drivers, Some(address(1))).await.0;
                assert_eq!(found, [address(1)]);
            }
            assert!(begun.elapsed() < RESOLVED_WITHIN * 11, "{:?}", begun.elapsed());
        });
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "S-5: one hangs, and a second is never begun");
    }

    #[test]
    fn a_name_s_new_address_comes_before_the_one_where_a_driver_was_met() {
        let begin = |name: &str| -> Lookup {
            let is_known = name == "driver:2";
            Box::pin(async move {
                let found = || vec![address(2), address(3)];
                is_known.then(found).ok_or_else(|| io::ErrorKind::NotFound.into())
            })
        };
        run(async {
            let mut lookups = Lookups { begin, ..Lookups::default() };
            let drivers = names(&["10.0.0.1:4", "driver:2", "no:1"]);
            let (found, why) = lookups.addresses(&drivers, Some(address(3))).await;
            assert_eq!(found, [address(4), address(2), address(3)], "each once");
            assert!(why.is_some_and(|why| why.contains("name not resolved")));
        });
    }
}
