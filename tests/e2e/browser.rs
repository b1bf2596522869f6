//! Chromium, driven by WebDriver: Debian's chromium-driver, one for each test. Used by `page`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{PATIENCE, wait_until};

/// Whether chromium and its driver are here.
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
pub(crate) fn is_browser_here() -> bool {
    let call = |program: &str| Command::new(program).arg("--version").output();
    let Err(error) = call("chromedriver").and_then(|_| call("chromium")) else { return true };
    let hint = format!("chromium cannot be run ({error}); install Debian's chromium-driver");
    assert!(std::env::var_os("ELASTIC_REQUIRE_CHROMIUM").is_none(), "{hint}");
    eprintln!("not shown: {hint}");
    false
}

/// A browser with one window.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser without a screen.
    pub(crate) fn start() -> Self {
        let profile = TempDir::new().expect("a temporary folder");
        // Another process may take the port between its choice and the driver's start.
        let (driver, address) = wait_until("a WebDriver", || {
            let listener = TcpListener::bind("127.0.0.1:0").ok()?;
            let address = listener.local_addr().ok()?;
            drop(listener);
            let mut driver = serve(address);
            let is_ready = wait_until("an answer", || {
                let ready = ask(address, "GET", "/status", None)
                    .is_some_and(|status| status["ready"] == true);
                ready.then_some(true).or_else(|| driver.try_wait().ok()?.map(|_| false))
            });
            is_ready.then_some((driver, address))
        });
        let folder = format!("--user-data-dir={}", profile.path().display());
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1400,1400",
            folder
        ]);
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments},
        }}});
        let session = ask(address, "POST", "/session", Some(&capabilities));
        let session = session.expect("a session");
        let session = session["sessionId"].as_str().expect("a browser").to_owned();
        Self { driver, address, session, _profile: profile }
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// The value of a script's `return`.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression of the page is true.
    pub(crate) fn wait_for(&self, expression: &str) {
        wait_until(expression, || {
            (self.run(&format!("return Boolean({expression})")) == true).then_some(())
        });
    }

    /// Types into an element.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let using = json!({"using": "css selector", "value": selector});
        let element = self.post("/element", &using);
        let id = element.as_object().and_then(|it| it.values().next()?.as_str().map(str::to_owned));
        let id = id.expect("an element");
        self.post(&format!("/element/{id}/value"), &json!({"text": text}));
    }

    /// Shows the page on a screen of this width, in light or dark colours.
    pub(crate) fn show_on(&self, width: u32, colours: &str) {
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    /// Keeps a picture of the whole page below `target`.
    pub(crate) fn keep_picture(&self, name: &str) -> PathBuf {
        let shot = self.devtools("Page.captureScreenshot", &json!({"captureBeyondViewport": true}));
        let picture = BASE64_STANDARD.decode(shot["data"].as_str().expect("a picture"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join(format!("{name}.png"));
        fs::write(&path, picture.expect("base64")).expect("a file");
        path
    }

    /// The browser's complaints so far: errors of scripts, refused loads.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let lines = self.post("/se/log", &json!({"type": "browser"}));
        let lines = lines.as_array().cloned().unwrap_or_default();
        lines.iter().map(|line| line["message"].to_string()).collect()
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        let answer = ask(self.address, "POST", &path, Some(body)).expect("an answer");
        assert!(answer.get("error").is_none(), "{path} {body}: {answer}");
        answer
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver and its browser are one group of processes.
        let group = Pid::from_raw(self.driver.id() as i32);
        let _ = ask(self.address, "DELETE", &format!("/session/{}", self.session), None);
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.driver.wait();
    }
}

fn serve(address: SocketAddr) -> Child {
    use std::os::unix::process::CommandExt as _;
    Command::new("chromedriver")
        .arg(format!("--port={}", address.port()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("the driver starts")
}

/// A request to the driver; the value of its answer.
fn ask(address: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    let body = body.map(ToString::to_string).unwrap_or_default();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    // The driver leaves the connection open.
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            _ if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let mut json = vec![0; length];
    stream.read_exact(&mut json).ok()?;
    let mut answer: Value = serde_json::from_slice(&json).ok()?;
    Some(answer["value"].take())
}
