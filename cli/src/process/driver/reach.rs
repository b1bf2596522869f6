//! The address at which a driver is reached, and the message to its operator about it. Used by the driver's process.

use std::net::SocketAddr;
use std::path::Path;

use crate::command_line::{DriverPlan, LauncherKind, host_and_port_or, say};
use crate::process::network::reached_here;

/// The address at which workers and agents reach the driver.
pub(super) fn reached_at(plan: &DriverPlan, address: SocketAddr) -> String {
    if let Some(advertise) = &plan.advertise {
        // The command line has checked it.
        return host_and_port_or(advertise, address.port()).unwrap_or_else(|_| advertise.clone());
    }
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    match (plan.launcher, nix::unistd::gethostname()) {
        (LauncherKind::Join | LauncherKind::Ssh, Ok(name)) => {
            format!("{}:{}", name.to_string_lossy(), address.port())
        }
        _ => reached_here(address).to_string(),
    }
}

/// Prints the join command to stderr at any log level: the operator needs it in the next shell.
pub(super) fn tell_how_to_join(plan: &DriverPlan, reached_at: &str, token_file: &Path) {
    let token_file = token_file.display();
    let mut text = format!(
        "join with: elastic-node --role worker --join {reached_at} --token-file {token_file}\n"
    );
    if !plan.bind.ip().is_loopback() {
        text.push_str("on other machines, give a copy of that file (mode 0600): it lets them in\n");
    }
    say(&text);
}
