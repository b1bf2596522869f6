//! Memory that runs out: the kernel's OOM killer ends a worker, and the commands that explain the loss name that
//! cause.

use std::fs;
use std::path::{Path, PathBuf};

use crate::observe::explanation;
use crate::support::Job;

/// Memory of the control group: less than the program takes.
const LIMIT_BYTES: u32 = 64 << 20;

/// A control group of version 1 with little memory. Removed with this value.
struct SmallGroup(PathBuf);

impl SmallGroup {
    /// `None` where this user may not make one.
    fn make() -> Option<Self> {
        let name = format!("elastic-node-test-{}", std::process::id());
        let group = Self(Path::new("/sys/fs/cgroup/memory").join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join("memory.limit_in_bytes"), LIMIT_BYTES.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        // A group that is not empty stays.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
fn s_12_a_worker_that_the_oom_killer_ends_is_named_so_and_the_others_go_on() {
    let Some(group) = SmallGroup::make() else {
        return eprintln!("not shown: this user may not make control groups of version 1");
    };
    let takes_memory = "exec python3 -c 'bytearray(400 << 20)'";
    let script = format!(
        "if [ $RANK = 1 ] && mkdir DIR/struck; then echo $$ > {}/cgroup.procs; {takes_memory}; fi; \
         while [ ! -e CONTROL/finish ]; do sleep 0.05; done",
        group.0.display()
    );
    let program = ["/bin/sh", "-c", &script].map(ToOwned::to_owned);
    let flags = ["-H", "a:1,b:1", "--launcher", "local", "--mode", "restart"];
    let mut job = Job::start_program(&flags, &program);
    job.wait("the event", |job| {
        let events = job.events_of("worker_out_of_memory");
        let told = events.iter().map(|event| event["worker"].as_str().unwrap_or_default());
        told.into_iter().any(|worker| worker.starts_with("b[0]")).then_some(())
    });
    job.wait("the next generation", |job| (job.sizes() == [2, 2]).then_some(()));
    let explained = explanation(&job, "1");
    assert_eq!(explained["host"], "b", "{explained}");
    let advice = explained["advice"].as_str().unwrap_or_default();
    assert!(advice.contains("more memory"), "{explained}");
    assert_eq!(job.finish(), 0);
    let stderr = job.stderr();
    assert!(stderr.contains("b:0 was probably killed for want of memory"), "{stderr}");
}
