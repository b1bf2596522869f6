//! A real Slurm for a test: munge, a controller and three nodes, all on this machine, in a folder of their own. Removed
//! when dropped. Used by the tests of `slurm`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::ports::free_port;
use crate::support::wait_until;

/// The variable that allows tests to run Slurm: it needs root, and Debian's slurm-wlm and munge.
const SWITCH: &str = "ELASTIC_TEST_SLURM";

/// The names of the nodes; each has two CPUs, whatever this machine has.
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];

pub(crate) struct SlurmCluster {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl SlurmCluster {
    /// Starts the cluster; none unless `ELASTIC_TEST_SLURM` is set.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn start() -> Option<Self> {
        if std::env::var_os(SWITCH).is_none() {
            eprintln!("not shown: set {SWITCH}=1 as root, with Debian's slurm-wlm and munge");
            return None;
        }
        let folder = TempDir::new().expect("a temporary folder");
        let mut cluster = Self { folder, daemons: Vec::new() };
        let munge = cluster.path("munge");
        fs::create_dir(&munge).expect("a folder");
        fs::create_dir(cluster.path("state")).expect("a folder");
        fs::write(cluster.path("key"), [7; 1024]).expect("a file");
        for (path, mode) in [("key", 0o600), ("munge", 0o755), ("", 0o755)] {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(cluster.path(path), mode).expect("ours");
        }
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force"]);
        for (flag, file) in [
            ("--key-file", "key"),
            ("--socket", "munge/socket"),
            ("--pid-file", "munge/pid"),
            ("--log-file", "munge/log"),
            ("--seed-file", "munge/seed"),
        ] {
            munged.arg(format!("{flag}={}", cluster.path(file).display()));
        }
        cluster.daemon(munged);
        wait_until("munge", || cluster.path("munge/socket").exists().then_some(()));
        cluster.configure();
        let mut controller = Command::new("slurmctld");
        controller.args(["-D", "-c"]);
        cluster.daemon(controller);
        for node in NODES {
            let mut daemon = Command::new("slurmd");
            daemon.args(["-D", "-N", node]);
            cluster.daemon(daemon);
        }
        wait_until("three idle nodes", || {
            let idle = cluster.command("sinfo").args(["-h", "-t", "idle", "-o", "%D"]).output();
            (String::from_utf8_lossy(&idle.ok()?.stdout).trim() == "3").then_some(())
        });
        Some(cluster)
    }

    /// A command of Slurm for this cluster.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf")).stdin(Stdio::null());
        command
    }

    fn configure(&self) {
        let host = nix::unistd::gethostname().expect("a name");
        let host = host.to_string_lossy();
        let at = |name: &str| self.path(name).display().to_string();
        let ports: Vec<u16> = (0..=NODES.len()).map(|_| free_port(Ipv4Addr::LOCALHOST)).collect();
        let mut lines = vec![
            "ClusterName=test".to_owned(),
            format!("SlurmctldHost={host}(127.0.0.1)"),
            "SlurmUser=root".to_owned(),
            "AuthType=auth/munge".to_owned(),
            // Slurm starts a job that was put back only when its former credentials have expired: after 120 s by default.
            format!("AuthInfo=socket={},cred_expire=10", at("munge/socket")),
            format!("StateSaveLocation={}", at("state")),
            format!("SlurmdSpoolDir={}", at("spool.%n")),
            format!("SlurmctldPidFile={}", at("controller.pid")),
            format!("SlurmdPidFile={}", at("%n.pid")),
            format!("SlurmctldPort={}", ports[0]),
            "ProctrackType=proctrack/linuxproc".to_owned(),
            "TaskPlugin=task/none".to_owned(),
            "SelectType=select/cons_tres".to_owned(),
            "SelectTypeParameters=CR_Core".to_owned(),
            "SlurmdParameters=config_overrides".to_owned(),
            "ReturnToService=2".to_owned(),
            "PartitionName=all Nodes=ALL Default=YES State=UP".to_owned(),
        ];
        for (node, port) in NODES.iter().zip(&ports[1..]) {
            fs::create_dir(self.path(&format!("spool.{node}"))).expect("a folder");
            lines.push(format!(
                "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2"
            ));
        }
        fs::write(self.path("slurm.conf"), lines.join("\n") + "\n").expect("a file");
    }

    fn daemon(&mut self, mut command: Command) {
        let name = command.get_program().to_string_lossy().into_owned();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("daemons.log"));
        let child = command
            .env("SLURM_CONF", self.path("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a file"))
            .spawn();
        self.daemons.push(child.unwrap_or_else(|error| panic!("{name} cannot be run: {error}")));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // The daemon may have ended.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
