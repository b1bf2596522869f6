//! A job whose drivers share an etcd that asks for certificates, with its secrets sealed (S-12): as an operator sets
//! it up, and as a reader of that etcd sees it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::etcd::Etcd;
use crate::network::not_shown;
use crate::support::{Job, binary};

/// The line before a private key.
const KEY_BEGINS: &[u8] = b"-----BEGIN PRIVATE KEY-----";

/// Makes `ca.pem`, and `server.pem` with `server.key` for both ends. False where there is no openssl.
fn make_certificates(folder: &Path) -> bool {
    let own = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
    fs::write(folder.join("own.ext"), own).expect("a file");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    for line in [
        format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority -days 1"),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=127.0.0.1"),
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 1 -extfile own.ext"
            .to_owned(),
    ] {
        match Command::new("openssl").args(line.split(' ')).current_dir(folder).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                not_shown(&format!("openssl cannot be run: {error}"));
                return false;
            }
        }
    }
    true
}

/// All data stored in etcd, as one of its readers sees it.
fn read_all(etcd: &Etcd, flags: &[&str]) -> Vec<u8> {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(flags)
        .args(["get", "--prefix", "--print-value-only", ""])
        .args(["--endpoints", &etcd.member()])
        .output()
        .expect("etcdctl comes with etcd");
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stdout.is_empty());
    output.stdout
}

fn has_key(bytes: &[u8]) -> bool {
    bytes.windows(KEY_BEGINS.len()).any(|part| part == KEY_BEGINS)
}

#[test]
fn s_12_without_a_secret_the_key_is_read_in_etcd_and_the_driver_warns() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.address().to_string();
    let mut job = Job::start(&["-n", "1", "--lease-timeout", "3", "--store", &store], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    assert!(has_key(&read_all(&etcd, &[])));
    assert!(job.stderr().contains("lies unsealed in the store"), "{}", job.stderr());
    assert_eq!(job.finish(), 0);
}

/// A file with a secret; returns its path.
fn secret_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    path.display().to_string()
}

#[test]
fn s_12_a_standby_with_another_secret_than_the_jobs_is_refused_at_its_start() {
    let Some(etcd) = Etcd::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let secret = secret_file(folder.path(), "secret", "a long text of the first driver");
    let other = secret_file(folder.path(), "other", "a long text of another driver");
    let store = etcd.address().to_string();
    let flags = ["-n", "1", "--lease-timeout", "3", "--store", &store, "--store-secret", &secret];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    for (given, words) in [
        (&["--store-secret", &other][..], "with another one than this driver's"),
        (&[], "this driver is given no secret"),
    ] {
        let state = folder.path().join("state").display().to_string();
        let standby = ["--role", "driver", "--standby", "--bind", "127.0.0.1:0", "--state-dir"];
        let output = Command::new(binary())
            .args(standby)
            .args([&state, "-n", "1", "--lease-timeout", "3", "--mode", "in-process"])
            .args(["--store", &store])
            .args(given)
            .arg("--")
            .args(job.program())
            .output()
            .expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
        assert!(stderr.contains("the same --store-secret FILE"), "{stderr}");
    }
    assert_eq!(job.standby_addresses(), [""; 0], "the job is handed over to none of them");
    job.standby("second", &[]);
    job.kill_driver();
    job.wait_for_term(2);
    job.wait_for_steps();
    job.control("finish");
    assert_eq!(job.standby_end("second"), 0);
    job.assert_exact();
}

#[test]
fn s_12_over_tls_and_sealed_the_job_goes_on_and_nobody_reads_its_key_in_etcd() {
    let folder = tempfile::tempdir().expect("a folder");
    if !make_certificates(folder.path()) {
        return;
    }
    let Some(etcd) = Etcd::start_tls(folder.path()) else { return };
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
    let secret =
        secret_file(folder.path(), "secret", "a long text that every driver of the job knows");
    let store = etcd.address().to_string();
    let of_tls = ["--store", &store, "--store-ca", &ca, "--store-cert", &certificate];
    let of_tls = [&of_tls[..], &["--store-key", &key]].concat();
    let sealed = ["-n", "1", "--lease-timeout", "3", "--store-secret", &secret];
    let mut job = Job::start(&[&sealed[..], &of_tls].concat(), &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let stored = read_all(&etcd, &["--cacert", &ca, "--cert", &certificate, "--key", &key]);
    assert!(!has_key(&stored), "a private key lies in etcd");
    assert!(!job.stderr().contains("unsealed"), "{}", job.stderr());
    // The next driver opens the seal, and one without the secret does not.
    job.kill_driver();
    job.start_driver_again();
    job.wait_for_term(2);
    job.wait_for_steps();
    assert_eq!(job.sizes(), [1], "D-3");
    job.kill_driver();
    let state = path("state");
    let without = ["--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", &state];
    let without = [&without[..], &["-n", "1", "--lease-timeout", "3", "--mode", "in-process"]];
    let program = job.program();
    let output = Command::new(binary())
        .args(without.concat())
        .args(&of_tls)
        .arg("--")
        .args(program)
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the same --store-secret FILE"), "{stderr}");
    job.start_driver_again();
    // If the killed driver's lease was over, the one without the secret has had it for a moment.
    job.wait("the next driver", |job| {
        job.status().filter(|status| status["term"].as_u64() >= Some(3))
    });
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
