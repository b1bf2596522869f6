//! The wait of a node whose port at the head's address is in use. Usually another `run` of the machine has it, whose
//! driver answers soon: this node joins that one. Else another program has it: the node that binds the port after that
//! has the driver. Called by [`head`](super::head).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::head::HeadPort;
use crate::command_line::CommandFailure;

/// Interval between an answer that does not come, which takes 1.5 s, and the next attempt to bind the port.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Time without an answer after which a warning names the port.
const WARNED_AFTER: Duration = Duration::from_secs(10);

/// The bound port, if it is free before a driver answers; none if one answers, or the port is another node's.
pub(super) async fn once_settled<T>(
    head: &str,
    patience: Duration,
    port: impl Fn() -> Result<HeadPort<T>, CommandFailure>,
    is_answered: impl Fn() -> bool,
) -> Result<Option<T>, CommandFailure> {
    let begun = Instant::now();
    let (mut is_told, mut is_warned) = (false, false);
    loop {
        match port()? {
            HeadPort::Bound(bound) => return Ok(Some(bound)),
            HeadPort::Elsewhere => return Ok(None),
            HeadPort::Taken => {}
        }
        // Nothing else runs in this process, so that the answer is waited for here.
        if is_answered() {
            return Ok(None);
        }
        let waited = begun.elapsed();
        if waited >= patience {
            return Err(taken(head, patience));
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!(
                "waits for a driver to answer at {head}, whose UDP port is in use on this node"
            );
        }
        if waited >= WARNED_AFTER && !std::mem::replace(&mut is_warned, true) {
            tracing::warn!(
                "the UDP port of {head} is in use on this node, and no driver answers there: another program has it. \
                 End that one, or give every node another port in --rdzv-endpoint or --master-port"
            );
        }
        sleep(AGAIN_AFTER.min(patience - waited)).await;
    }
}

fn taken(head: &str, patience: Duration) -> CommandFailure {
    let message = format!(
        "the UDP port of {head} is in use on this node, and no driver answered there within {} s: another program has \
         it",
        patience.as_secs()
    );
    CommandFailure::new(message).hint(
        "end that program (`ss -ulnp` names it), or give every node another port in --rdzv-endpoint or --master-port",
    )
}

#[cfg(test)]
mod tests {
    use elastic_runtime::system::run_paused;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Waits for a port that another process has for so long, while a driver answers after so long; returns whether
    /// this node has bound it, and the time that it took.
    fn waited(
        taken_for: Duration,
        answered_after: Duration,
    ) -> (Result<bool, CommandFailure>, Duration) {
        run_paused(async {
            let begun = Instant::now();
            let port = || match begun.elapsed() < taken_for {
                true => Ok(HeadPort::Taken),
                false => Ok(HeadPort::Bound(())),
            };
            let is_answered = || begun.elapsed() >= answered_after;
            let settled = once_settled("head:29400", PATIENCE, port, is_answered).await;
            (settled.map(|bound| bound.is_some()), begun.elapsed())
        })
    }

    #[test]
    fn t_2_a_port_that_is_free_is_bound_at_once_whoever_answers() {
        let (leads, after) = waited(Duration::ZERO, Duration::ZERO);
        assert!(matches!(leads, Ok(true)));
        assert_eq!(after, Duration::ZERO);
    }

    #[test]
    fn t_2_a_node_joins_the_driver_that_has_the_port_as_soon_as_it_answers() {
        for answered_after in [Duration::ZERO, AGAIN_AFTER, WARNED_AFTER] {
            let (leads, after) = waited(2 * PATIENCE, answered_after);
            assert!(matches!(leads, Ok(false)));
            assert_eq!(after, answered_after);
        }
    }

    #[test]
    fn s_2_a_node_drives_once_a_stranger_has_left_the_port() {
        let (leads, after) = waited(PATIENCE / 2, 2 * PATIENCE);
        assert!(matches!(leads, Ok(true)));
        assert_eq!(after, PATIENCE / 2);
    }

    #[test]
    fn g_9_a_port_that_a_stranger_keeps_is_waited_for_no_longer_than_its_time_and_named() {
        let (leads, after) = waited(2 * PATIENCE, 2 * PATIENCE);
        let failure = leads.expect_err("nobody drives");
        assert!(failure.to_string().contains("port of head:29400 is in use"), "{failure}");
        assert_eq!(after, PATIENCE);
    }

    #[test]
    fn t_2_a_port_that_becomes_another_node_s_is_waited_for_no_more() {
        let settled = run_paused(once_settled(
            "head:29400",
            PATIENCE,
            || Ok(HeadPort::<()>::Elsewhere),
            || false,
        ));
        assert!(matches!(settled, Ok(None)));
    }
}
