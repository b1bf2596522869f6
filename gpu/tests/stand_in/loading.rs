//! Loading at run time: the stand-in, NCCL's own wheel if there is one, nothing, and broken libraries.

use std::process::Command;

use elastic_gpu::load::{LibrarySearch, LoadError};
use elastic_gpu::nccl::{Nccl, UniqueId};
use elastic_gpu::{Gpu, NoGpu};

use crate::support::{faults, library, search};

#[test]
fn what_was_taken_is_told() {
    let _turn = faults();
    let gpu = Gpu::open(&search(), 1, false).expect("the stand-in works");
    let text = gpu.describe();
    assert!(text.contains("NCCL 2.30.3") && text.contains("libelastic_gpu_stand_in.so"), "{text}");
    assert!(text.contains("by the configuration") && text.contains("0000:01:00.0"), "{text}");
}

#[test]
fn where_nothing_is_installed_one_line_says_so() {
    let nothing = LibrarySearch::default();
    let error = Gpu::open(&nothing, 0, false).expect_err("nothing is there");
    assert_eq!(error.to_string(), "no CUDA driver (libcuda.so.1) is installed");
    let without_nccl = LibrarySearch { nccl: None, ..search() };
    let error = Gpu::open(&without_nccl, 0, false).expect_err("NCCL is not there");
    assert!(matches!(error, NoGpu::NoNccl), "{error}");
    assert!(!error.to_string().contains('\n'));
}

#[test]
fn a_library_of_another_kind_is_named() {
    let other = if cfg!(target_env = "musl") { "libc.so" } else { "libm.so.6" };
    let search = LibrarySearch { nccl: Some(other.into()), ..search() };
    let error = Nccl::open(&search).expect_err("it is another library");
    assert!(matches!(error, LoadError::Symbol { symbol: "ncclGetVersion", .. }), "{error}");
    assert!(error.to_string().contains(other), "{error}");
}

#[test]
fn a_driver_that_does_not_start_is_named() {
    let faults = faults();
    faults.set("cuda_init=100");
    let error = Gpu::open(&search(), 0, false).expect_err("it does not start");
    assert!(error.to_string().contains("libelastic_gpu_stand_in.so"), "{error}");
    assert!(error.to_string().contains("cuInit"), "{error}");
    faults.set("devices=0");
    let error = Gpu::open(&search(), 0, false).expect_err("there are none");
    assert!(matches!(error, NoGpu::NoDevice), "{error}");
}

#[test]
fn a_slot_beyond_the_last_gpu_shares_one_only_where_that_is_wanted_and_can_be() {
    let faults = faults();
    faults.set("devices=1");
    assert!(matches!(Gpu::open(&search(), 1, false), Err(NoGpu::NoneLeft { slot: 1, count: 1 })));
    assert_eq!(Gpu::open(&search(), 1, true).expect("it shares").device().facts().ordinal, 0);
    faults.set("devices=1\nversion=22902");
    assert!(Gpu::open(&search(), 1, true).is_err(), "this version cannot");
}

/// Names a Python environment with an `nvidia-nccl` wheel.
const ENVIRONMENT: &str = "ELASTIC_TEST_NCCL_ENVIRONMENT";

/// NCCL itself, where a Python environment has it: neither a GPU nor a driver is needed for these two calls. It is
/// loaded in a process of its own, which it leaves with a thread that waits for ranks.
#[test]
fn nccls_own_wheel_tells_its_version_and_makes_a_unique_id() {
    if std::env::var_os("WITH_NCCLS_OWN").is_none() {
        let this = std::env::current_exe().expect("the test's own path");
        let name = "loading::nccls_own_wheel_tells_its_version_and_makes_a_unique_id";
        let mut child = Command::new(this);
        child.args(["--exact", name, "--nocapture"]).env("WITH_NCCLS_OWN", "1");
        child.env("NCCL_SOCKET_IFNAME", "lo");
        if let Some(environment) = std::env::var_os(ENVIRONMENT) {
            child.env("VIRTUAL_ENV", environment);
        }
        let output = child.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        say(text.trim());
        return;
    }
    let search = LibrarySearch::from_environment(|name| std::env::var(name).ok());
    let Some(nccl) = Nccl::open(&search).expect("what is installed works") else {
        assert!(std::env::var_os(ENVIRONMENT).is_none(), "{ENVIRONMENT} has no NCCL");
        say("skipped: no NCCL is installed (docs/gpu.md says how to make this test run)");
        return;
    };
    assert!(nccl.version().major >= 2, "{nccl:?}");
    assert_ne!(nccl.unique_id().expect("it makes one"), UniqueId([0; UniqueId::BYTES]));
    say(&format!("NCCL {} of {} works", nccl.version(), nccl.file().display()));
    assert_ne!(nccl.file(), library());
}

#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
fn say(text: &str) {
    eprintln!("{text}");
}
