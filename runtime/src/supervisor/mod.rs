//! A supervisor: starts its children in order, and restarts those that end, as its policy says ([`RestartCore`]
//! decides). When the restart budget is spent, it fails itself with the reason, which its parent sees as any
//! other child's failure. actix's own Supervisor is never used: it is blind to panics, and restarts the same
//! object, at once and without a bound.

mod spec;

use std::collections::BTreeMap;
use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, WrapFuture,
};
use elastic_protocol::Time;
use rand_chacha::ChaCha8Rng;

pub use self::spec::ChildSpec;
use crate::child::{ChildExit, ChildHandle, fail, spawn_child_with_handle};
use crate::clock::Clock;
use crate::node::NodeHandle;
use crate::restart::{ChildNumber, Lifetime, RestartCore, RestartDecision, RestartPolicy};
use crate::shutdown::{Shutdown, Stoppable, shutdown_in_order};
use crate::timer::{TimedActor, TimerSlot};

/// Grace period of a sibling that is stopped for a restart; then it is ended by force.
pub const SIBLING_GRACE: Duration = Duration::from_secs(1);

/// Events of a supervisor's children, for logs, gauges and oracles.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SupervisorEvent {
    /// A child was started, for the first time or again.
    Started {
        /// The child's name.
        child: String,
    },
    /// A child ended, and the policy has decided.
    Ended {
        /// The child's name.
        child: String,
        /// Its exit.
        exit: ChildExit,
        /// The decision.
        decision: RestartDecision,
    },
}

/// A supervisor before it starts: its children in order.
pub struct SupervisorSpec {
    name: String,
    policy: RestartPolicy,
    children: Vec<ChildSpec>,
    observe: Box<dyn FnMut(&SupervisorEvent)>,
}

impl SupervisorSpec {
    /// A supervisor without children. The name is for logs, and names the random stream of the back-off.
    pub fn new(name: impl Into<String>, policy: RestartPolicy) -> Self {
        Self { name: name.into(), policy, children: Vec::new(), observe: Box::new(|_| {}) }
    }

    /// Adds a child, started after the earlier ones.
    #[must_use]
    pub fn child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    /// Reports every event of the children to `observe`; events are logged in any case.
    #[must_use]
    pub fn observed_by(mut self, observe: impl FnMut(&SupervisorEvent) + 'static) -> Self {
        self.observe = Box::new(observe);
        self
    }

    /// Starts the supervisor; the children start when its task first runs. When it gives up, `on_exit` gets
    /// [`ChildExit::Failed`] with the reason.
    pub fn start(
        self,
        node: &NodeHandle,
        on_exit: impl FnOnce(ChildExit) + 'static,
    ) -> (Addr<Supervisor>, ChildHandle) {
        let supervisor = self.make(node);
        spawn_child_with_handle(|_| supervisor, on_exit)
    }

    /// Makes the actor: the factory of a supervisor that is itself a child
    /// ([`ChildSpec::with_shutdown`] with `move |_| spec().make(&node)`).
    pub fn make(self, node: &NodeHandle) -> Supervisor {
        let mut core = RestartCore::new(self.policy);
        let children = self.children.into_iter();
        let children = children.map(|spec| (core.add_child(spec.lifetime), Child::new(spec)));
        Supervisor {
            children: children.collect(),
            core,
            clock: node.clock(),
            rng: node.random(&self.name, 0),
            timer: TimerSlot::new(node.clock()),
            name: self.name,
            observe: self.observe,
            shutting_down: false,
        }
    }
}

/// The actor. Stop it with [`Shutdown`]: it stops its children first, in reverse order. No child outlives it,
/// however it ends.
pub struct Supervisor {
    name: String,
    core: RestartCore,
    children: BTreeMap<ChildNumber, Child>,
    clock: Clock,
    rng: ChaCha8Rng,
    timer: TimerSlot,
    observe: Box<dyn FnMut(&SupervisorEvent)>,
    shutting_down: bool,
}

struct Child {
    spec: ChildSpec,
    state: SupervisedState,
}

enum SupervisedState {
    Alive(Stoppable),
    /// The child is stopping, to be restarted at `restart_at`; it is ended by force at `kill_at`.
    Stopping {
        life: Stoppable,
        kill_at: Time,
        restart_at: Time,
    },
    /// The child has ended, and is restarted at this time.
    Waiting(Time),
    /// The child has ended for good.
    Ended,
}

impl Child {
    const fn new(spec: ChildSpec) -> Self {
        Self { spec, state: SupervisedState::Waiting(Time::ZERO) }
    }

    const fn life(&self) -> Option<&Stoppable> {
        match &self.state {
            SupervisedState::Alive(life) | SupervisedState::Stopping { life, .. } => Some(life),
            SupervisedState::Waiting(_) | SupervisedState::Ended => None,
        }
    }

    const fn deadline(&self) -> Option<Time> {
        match self.state {
            SupervisedState::Stopping { kill_at, .. } => Some(kill_at),
            SupervisedState::Waiting(at) => Some(at),
            SupervisedState::Alive(_) | SupervisedState::Ended => None,
        }
    }
}

struct ChildExited {
    child: ChildNumber,
    exit: ChildExit,
}

impl Message for ChildExited {
    type Result = ();
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.proceed(ctx);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl TimedActor for Supervisor {
    fn timer(&mut self) -> &mut TimerSlot {
        &mut self.timer
    }

    fn timer_fired(&mut self, now: Time, ctx: &mut Context<Self>) {
        for child in self.children.values() {
            if let SupervisedState::Stopping { life, kill_at, .. } = &child.state
                && *kill_at <= now
            {
                tracing::warn!(supervisor = %self.name, child = %life.name, "ended by force");
                life.handle.terminate();
            }
        }
        self.proceed(ctx);
    }
}

impl Supervisor {
    /// Once no child is stopping, starts the children that are due, in order; then arms the timer.
    fn proceed(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        if self.shutting_down {
            return;
        }
        let settled =
            !self.children.values().any(|c| matches!(c.state, SupervisedState::Stopping { .. }));
        for (number, child) in &mut self.children {
            if !settled || !matches!(child.state, SupervisedState::Waiting(at) if at <= now) {
                continue;
            }
            let (parent, number) = (ctx.address(), *number);
            let on_exit = move |exit| parent.do_send(ChildExited { child: number, exit });
            let (handle, shutdown) = (child.spec.start)(Box::new(on_exit));
            let name = child.spec.name.clone();
            tracing::debug!(supervisor = %self.name, child = %name, "started");
            (self.observe)(&SupervisorEvent::Started { child: name.clone() });
            child.state = SupervisedState::Alive(Stoppable { name, handle, shutdown });
        }
        // A child that waits for another to stop is started by that one's end, not by the timer.
        let later = self.children.values().filter_map(Child::deadline).filter(|at| *at > now);
        self.timer.arm(ctx, later.min());
    }

    fn carry_out(&mut self, ended: ChildNumber, exit: ChildExit, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        let decision = self.core.handle_exit(now, ended, &exit, &mut self.rng);
        let Some(child) = self.children.get_mut(&ended) else { return };
        child.state = SupervisedState::Ended;
        let name = child.spec.name.clone();
        tracing::info!(supervisor = %self.name, child = %name, %exit, ?decision, "a child ended");
        let event = SupervisorEvent::Ended { child: name.clone(), exit, decision };
        (self.observe)(&event);
        let SupervisorEvent::Ended { decision, .. } = event else { return };
        match decision {
            RestartDecision::Ignore { .. } => {}
            RestartDecision::Escalate { reason } => {
                self.end_all();
                fail(ctx, format!("{}: child {name} {reason}", self.name));
            }
            RestartDecision::RestartAt { children, at, .. } => {
                for number in children.into_iter().rev() {
                    if let Some(child) = self.children.get_mut(&number) {
                        child.restart(now, at);
                    }
                }
            }
        }
    }

    /// Ends all children by force, last one first.
    fn end_all(&mut self) {
        for child in self.children.values().rev() {
            if let Some(life) = child.life() {
                life.handle.terminate();
            }
        }
    }
}

impl Child {
    /// Restarts the child at `at`; a child that lives is stopped first.
    fn restart(&mut self, now: Time, at: Time) {
        self.state = match std::mem::replace(&mut self.state, SupervisedState::Ended) {
            SupervisedState::Alive(life) => {
                match &life.shutdown {
                    Some(shutdown) => shutdown.do_send(Shutdown {
                        reason: "a sibling ended".to_owned(),
                        within: SIBLING_GRACE,
                    }),
                    None => life.handle.stop(),
                }
                SupervisedState::Stopping { life, kill_at: now + SIBLING_GRACE, restart_at: at }
            }
            SupervisedState::Stopping { life, kill_at, restart_at } => {
                SupervisedState::Stopping { life, kill_at, restart_at: restart_at.max(at) }
            }
            SupervisedState::Waiting(before) => SupervisedState::Waiting(before.max(at)),
            SupervisedState::Ended => SupervisedState::Waiting(at),
        };
    }
}

impl Handler<ChildExited> for Supervisor {
    type Result = ();

    fn handle(&mut self, ended: ChildExited, ctx: &mut Context<Self>) {
        if self.shutting_down {
            return;
        }
        let Some(child) = self.children.get_mut(&ended.child) else { return };
        if let SupervisedState::Stopping { restart_at, .. } = child.state {
            child.state = match child.spec.lifetime {
                Lifetime::Temporary => SupervisedState::Ended,
                Lifetime::Permanent | Lifetime::Transient => SupervisedState::Waiting(restart_at),
            };
            if matches!(child.state, SupervisedState::Ended) {
                self.core.remove_child(ended.child);
            }
        } else {
            self.carry_out(ended.child, ended.exit, ctx);
        }
        self.proceed(ctx);
    }
}

impl Handler<Shutdown> for Supervisor {
    type Result = ();

    fn handle(&mut self, shutdown: Shutdown, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.shutting_down, true) {
            return;
        }
        self.timer.arm(ctx, None);
        let alive = self.children.values().filter_map(Child::life).cloned().collect();
        // Part of the time is kept for this actor's own end, so that its parent does not call it stuck.
        let within = shutdown.within.mul_f64(0.9);
        let name = self.name.clone();
        let ended = async move {
            let report = shutdown_in_order(alive, &shutdown.reason, within).await;
            if !report.stuck.is_empty() {
                tracing::warn!(supervisor = %name, stuck = ?report.stuck, "ended by force");
            }
        };
        ctx.spawn(ended.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}
