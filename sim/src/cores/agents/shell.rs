//! Inputs of an agent's core, and the effects of its outputs. The world calls it for frames, link events and timers.

use elastic_agent::core::{AgentCore, AgentOutput, DriverLink};
use elastic_protocol::messages::{AgentToDriver, DriverToAgent};
use elastic_protocol::{Term, Time};
use elastic_runtime::transport::LinkEvent;

use super::super::network::{LinkDirection, LinkFrame};
use super::super::{Happening, World};
use super::{AgentLife, AgentSeat};
use crate::trace::{TraceKind, TracePlace};

impl World {
    pub(in crate::cores) fn with_agent(
        &mut self,
        host: u32,
        life: u32,
        input: impl FnOnce(&mut AgentCore, Time),
    ) {
        let world = self.now;
        let Some(agent) = self.agent_mut(host, life) else { return };
        let now = agent.clock.local(world);
        let Some(core) = agent.core() else { return };
        input(core, now);
        self.drain_agent(host);
    }

    /// Delivers a message from the driver of a term.
    pub(in crate::cores) fn agent_hears(
        &mut self,
        (host, life): (u32, u32),
        term: Term,
        message: DriverToAgent,
    ) {
        self.note_order(host, life, &message);
        self.with_agent(host, life, |core, now| {
            if core.heeds(term, &message) {
                core.handle_driver(now, message);
            }
        });
    }

    pub(in crate::cores) fn agent_gets_back(
        &mut self,
        host: u32,
        life: u32,
        message: AgentToDriver,
    ) {
        self.with_agent(host, life, |core, now| core.handle_undeliverable(now, message));
    }

    pub(in crate::cores) fn agent_link_event(&mut self, host: u32, life: u32, event: &LinkEvent) {
        let link = DriverLink::from(event);
        self.with_agent(host, life, |core, now| core.handle_link(now, link));
    }

    /// Sends SIGTERM to the agent.
    pub(in crate::cores) fn drain_host(&mut self, host: u32) {
        self.note_drain(host);
        if let Some(node) = self.hosts[host as usize].agent.as_ref().and_then(AgentLife::node) {
            return node.drain();
        }
        let life = self.hosts[host as usize].lives;
        self.with_agent(host, life, |core, now| core.handle_drain(now, "SIGTERM", 143));
    }

    pub(in crate::cores) fn handle_agent_timer(&mut self, host: u32, life: u32) {
        let world = self.now;
        let Some(agent) = self.agent_mut(host, life) else { return };
        if agent.armed != world {
            return;
        }
        if agent.stopped > 0 {
            return agent.frozen.push(Happening::AgentTimer { host, life });
        }
        agent.armed = u64::MAX;
        let now = agent.clock.local(world);
        let Some(core) = agent.core() else { return };
        if core.poll_timeout().is_some_and(|at| at <= now) {
            core.handle_timeout(now);
            self.record(TraceKind::Timer, TracePlace::agent(host), (0, 0), String::new);
        }
        self.drain_agent(host);
    }

    pub(in crate::cores) fn thaw_agent(&mut self, host: u32) {
        let world = self.now;
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        if let AgentSeat::Actor(node) = &agent.seat {
            node.set_stopped(false);
        }
        let mut frozen = std::mem::take(&mut agent.frozen);
        if frozen.iter().any(|happening| matches!(happening, Happening::AgentTimer { .. })) {
            agent.armed = world;
        }
        for happening in frozen.drain(..) {
            self.agenda.push(world, happening);
        }
    }

    pub(in crate::cores) fn drain_agent(&mut self, host: u32) {
        let mut outputs = 0_u32;
        loop {
            let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
            let Some(output) = agent.core().and_then(AgentCore::poll_output) else { break };
            outputs += 1;
            self.put_out(TracePlace::agent(host), "agent", &output);
            self.carry_out_agent(host, output);
        }
        let slots = self.options.slots;
        if outputs > 1_200 + 16 * slots {
            self.fail_safety(format!("one input of the agent of h{host} gave {outputs} outputs"));
        }
        let now = self.now;
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        let checked = agent.core().map_or(Ok(()), |core| core.check());
        self.demand(checked);
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        let timeout = agent.core().and_then(|core| core.poll_timeout());
        if let Some(at) = timeout {
            let at = agent.clock.world(at).max(now);
            if at < agent.armed {
                agent.armed = at;
                let life = agent.life;
                self.agenda.push(at, Happening::AgentTimer { host, life });
            }
        }
    }

    fn carry_out_agent(&mut self, host: u32, output: AgentOutput) {
        let Some(agent) = self.hosts[host as usize].agent.as_mut() else { return };
        let (life, link) = (agent.life, agent.link);
        let has_effect = matches!(output, AgentOutput::Spawn(_) | AgentOutput::Signal { .. });
        if self.hears_outdated && has_effect {
            let what = format!("{output:?}");
            self.fail_safety(format!(
                "D-2: the agent of h{host} obeys a driver that was succeeded: {what}"
            ));
        }
        match output {
            AgentOutput::ToDriver(message) => {
                let sent = self.send(link, LinkDirection::ToDriver, LinkFrame::FromAgent(message));
                if let Err(refused) = sent
                    && let LinkFrame::FromAgent(message) = refused.frame.into_frame()
                {
                    let world = self.now;
                    if let Some(agent) = self.agent_mut(host, life) {
                        let now = agent.clock.local(world);
                        if let Some(core) = agent.core() {
                            core.handle_undeliverable(now, message);
                        }
                    }
                }
            }
            AgentOutput::Spawn(order) => {
                self.agent_spawns(host, *order);
            }
            AgentOutput::Signal { worker, signal, .. } => {
                self.agent_signals(host, &worker, signal);
            }
            AgentOutput::Inspect { worker, with_stack } => {
                self.agent_inspects(host, &worker, with_stack);
            }
            AgentOutput::CheckHealth { timeout, .. } => self.agent_checks_health(host, timeout),
            AgentOutput::Exit { code, reason } => self.agent_ended(host, life, code, reason),
            AgentOutput::Warn(warning) => {
                let place = TracePlace::agent(host);
                self.decide(place, || format!("warning: {warning}"));
                self.record(TraceKind::Log, place, (100, 0), || warning.to_string());
            }
        }
    }
}
