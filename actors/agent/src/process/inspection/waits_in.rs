//! Puts into words the system call or kernel function that a process's main thread is blocked in. Called by `reading`.

use std::fs;
use std::net::SocketAddr;

use super::peer::peer;
use super::system_calls::{Blocking, blocking};
use super::texts::{bounded, shortened};

/// Description of the system call or kernel function in which the main thread waits; `None` if the thread runs, or if
/// the kernel does not show it.
pub(super) fn waits_in(pid: i32) -> Option<String> {
    let of_thread = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{pid}/{name}"));
    let words = match of_thread("syscall") {
        Ok(line) => in_system_call(&line, |number| descriptor(pid, number)),
        // It takes the permission to trace the process.
        Err(_) => in_kernel(&of_thread("wchan").ok()?),
    };
    words.map(|words| bounded(&words))
}

/// The socket that the main thread waits for, by its descriptor, and its other end. The description by [`waits_in`]
/// leaves it out: members by restart are compared by that description, and each of them has other peers.
pub(super) fn waits_for(pid: i32) -> Option<(u64, SocketAddr)> {
    let line = fs::read_to_string(format!("/proc/{pid}/task/{pid}/syscall")).ok()?;
    let (number, descriptor) = call_on_descriptor(&line)?;
    if !matches!(blocking(number), Some(Blocking::On(_))) {
        return None;
    }
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
    Some((descriptor, peer(pid, inode)?))
}

/// A system call, and the descriptor that is its first argument if it is one of those on descriptors.
fn call_on_descriptor(line: &str) -> Option<(i64, u64)> {
    let mut words = line.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let first =
        words.next().and_then(|it| u64::from_str_radix(it.trim_start_matches("0x"), 16).ok());
    // The system passes a register on, of which a descriptor is the lower half.
    Some((number, first.unwrap_or_default() & u64::from(u32::MAX)))
}

/// Description of a wait, from a line of `/proc/PID/syscall`: the number of the call and its arguments, or `running`,
/// or -1 outside of a call.
fn in_system_call(line: &str, descriptor: impl Fn(u64) -> Option<String>) -> Option<String> {
    let (number, fd) = call_on_descriptor(line)?;
    if number < 0 {
        return None;
    }
    Some(match blocking(number) {
        Some(Blocking::On(what)) => {
            let is = descriptor(fd).map(|is| format!(" ({is})")).unwrap_or_default();
            format!("{what} file descriptor {fd}{is}")
        }
        Some(Blocking::In(what)) => what.to_owned(),
        None => format!("system call {number}"),
    })
}

/// Description of a wait in a function of the kernel, by its name.
fn in_kernel(function: &str) -> Option<String> {
    let function = function.trim();
    let is_known = !function.is_empty() && function != "0";
    is_known.then(|| format!("the kernel's {function}"))
}

/// Description of an open file descriptor of the process.
fn descriptor(pid: i32, number: u64) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
    let link = link.to_string_lossy();
    Some(match link.split_once(':') {
        Some(("pipe", _)) => "a pipe".to_owned(),
        Some(("socket", _)) => "a socket".to_owned(),
        Some(("anon_inode", kind)) => kind.trim_matches(['[', ']']).to_owned(),
        _ => shortened(&link),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_on_a_descriptor_says_what_that_is() {
        let pipe = |fd| (fd == 1).then(|| "a pipe".to_owned());
        let line = format!("{} 0x1 0x7f 0x2000 0x0 0x0 0x0 0x7ffe 0x7fa4\n", libc::SYS_write);
        let told = in_system_call(&line, pipe);
        assert_eq!(told.as_deref(), Some("write to file descriptor 1 (a pipe)"));
        let line = format!("{} 0xffffffff00000007 0x7f\n", libc::SYS_recvmsg);
        let told = in_system_call(&line, pipe);
        assert_eq!(told.as_deref(), Some("receive from file descriptor 7"));
    }

    #[test]
    fn other_calls_have_words_or_their_number() {
        let none = |_| None;
        let told = in_system_call(&format!("{} 0x0\n", libc::SYS_futex), none);
        assert_eq!(told.as_deref(), Some("a lock or a condition (futex)"));
        assert_eq!(in_system_call("9999 0x0\n", none).as_deref(), Some("system call 9999"));
        assert_eq!(in_system_call("running\n", none), None);
        assert_eq!(in_system_call("-1 0x7ffe 0x7fa4\n", none), None);
        assert_eq!(in_kernel("pipe_write").as_deref(), Some("the kernel's pipe_write"));
        assert_eq!(in_kernel("0"), None);
    }
}
