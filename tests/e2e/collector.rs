//! A collector of traces that decodes the traces sent to it (OTLP by HTTP and protobuf), or refuses them, or stands
//! still. Used by `traces`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// A collector's treatment of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CollectorManner {
    /// It takes them.
    Takes,
    /// It answers that it has no room now.
    Refuses,
    /// It reads nothing and never answers.
    Hangs,
}

/// A request as it was taken.
#[derive(Clone, Debug)]
pub(crate) struct TakenRequest {
    /// The request line and the headers, in small letters.
    pub(crate) head: String,
    pub(crate) body: ExportTraceServiceRequest,
}

/// The collector; it listens until the test ends.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    taken: Arc<Mutex<Vec<TakenRequest>>>,
    /// Connections that were made.
    connections: Arc<Mutex<u64>>,
}

impl Collector {
    pub(crate) fn start(manner: CollectorManner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let taken: Arc<Mutex<Vec<TakenRequest>>> = Arc::default();
        let connections: Arc<Mutex<u64>> = Arc::default();
        let (takes, counts) = (Arc::clone(&taken), Arc::clone(&connections));
        start(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                *counts.lock().expect("no panic") += 1;
                let takes = Arc::clone(&takes);
                start(move || serve(connection, manner, &takes));
            }
        });
        Self { address, taken, connections }
    }

    /// The value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn taken(&self) -> Vec<TakenRequest> {
        self.taken.lock().expect("no panic").clone()
    }

    pub(crate) fn connections(&self) -> u64 {
        *self.connections.lock().expect("no panic")
    }

    /// All spans that came.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.taken();
        let resources = requests.iter().flat_map(|request| &request.body.resource_spans);
        resources.flat_map(|it| &it.scope_spans).flat_map(|it| it.spans.clone()).collect()
    }
}

/// Runs this on a thread of its own.
fn start(work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().spawn(work).expect("a thread");
}

fn serve(connection: TcpStream, manner: CollectorManner, taken: &Mutex<Vec<TakenRequest>>) {
    if manner == CollectorManner::Hangs {
        loop {
            thread::park();
        }
    }
    let mut answers = connection.try_clone().expect("a second handle");
    let mut requests = BufReader::new(connection);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if requests.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {
                continue;
            }
            return;
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|it| it.trim().parse().ok()).expect("a length");
        let mut body = vec![0; length];
        requests.read_exact(&mut body).expect("the whole body");
        let answer = match manner {
            CollectorManner::Refuses => "503 Service Unavailable",
            _ => {
                let body = ExportTraceServiceRequest::decode(&body[..]).expect("protobuf");
                taken.lock().expect("no panic").push(TakenRequest { head, body });
                "200 OK"
            }
        };
        let answer = format!(
            "HTTP/1.1 {answer}\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
        );
        if answers.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The text or number of an attribute.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}
