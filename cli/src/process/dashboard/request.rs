//! Requests and answers of the dashboard as bytes: HTTP/1.1, one request a connection. Used by `server` and `answer`.

use httparse::{EMPTY_HEADER, Request, Status};

/// Most bytes of a request's head.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most headers of a request.
const HEADERS_MAX: usize = 64;

/// The parts of a request that matter here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct DashboardRequest {
    pub(super) method: String,
    /// The path, without the query.
    pub(super) path: String,
    /// The name or address that the request was sent to.
    pub(super) host: Option<String>,
    pub(super) authorization: Option<String>,
    /// The content types that the reader takes.
    pub(super) accept: Option<String>,
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct DashboardAnswer {
    /// Code and reason, as in the status line.
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// Text for people.
const PLAIN: &str = "text/plain; charset=utf-8";

impl DashboardAnswer {
    /// An answer for people.
    pub(super) fn plain(status: &'static str, text: &str) -> Self {
        Self { status, content_type: PLAIN, body: format!("{text}\n") }
    }

    /// The answer as it is sent. No browser runs, frames, keeps or interprets what is in it.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let challenge = if status.starts_with("401") { "www-authenticate: Bearer\r\n" } else { "" };
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\
             cache-control: no-store\r\nx-content-type-options: nosniff\r\n{challenge}\
             content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

/// How far the head of a request has come.
pub(super) enum HeadProgress {
    /// More is to come.
    Partial,
    /// The head is whole.
    Complete(DashboardRequest),
    /// It is no request; the answer says so.
    Invalid(DashboardAnswer),
}

/// The answer to a head that is too long.
pub(super) fn too_long() -> DashboardAnswer {
    DashboardAnswer::plain("431 Request Header Fields Too Large", "the request is too long")
}

/// Reads the head of a request.
pub(super) fn read_head(bytes: &[u8]) -> HeadProgress {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Partial) => return HeadProgress::Partial,
        Ok(Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return HeadProgress::Invalid(too_long()),
        Err(_) => {
            let answer = DashboardAnswer::plain("400 Bad Request", "this is no HTTP request");
            return HeadProgress::Invalid(answer);
        }
    }
    let header = |name: &str| {
        let header = request.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name))?;
        Some(String::from_utf8_lossy(header.value).trim().to_owned())
    };
    let target = request.path.unwrap_or_default();
    HeadProgress::Complete(DashboardRequest {
        method: request.method.unwrap_or_default().to_owned(),
        path: target.split('?').next().unwrap_or_default().to_owned(),
        host: header("host"),
        authorization: header("authorization"),
        accept: header("accept"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_once_it_is_whole() {
        let text = b"GET /metrics?x=1 HTTP/1.1\r\nhost: a:1\r\nAuthorization: Bearer t \r\n\r\n";
        for length in 0..text.len() {
            assert!(matches!(read_head(&text[..length]), HeadProgress::Partial), "{length}");
        }
        let HeadProgress::Complete(request) = read_head(text) else { panic!("it is whole") };
        let expected = DashboardRequest {
            method: "GET".to_owned(),
            path: "/metrics".to_owned(),
            host: Some("a:1".to_owned()),
            authorization: Some("Bearer t".to_owned()),
            accept: None,
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn what_is_no_request_is_told_so() {
        for text in ["\u{0}\u{1}\u{2}", "GET / SPDY\r\n\r\n"] {
            let HeadProgress::Invalid(answer) = read_head(text.as_bytes()) else {
                panic!("{text:?} is no request")
            };
            assert_eq!(answer.status, "400 Bad Request");
        }
        let many: String = (0..=HEADERS_MAX).map(|number| format!("a{number}: b\r\n")).collect();
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert!(
            matches!(read_head(many.as_bytes()), HeadProgress::Invalid(answer) if answer == too_long())
        );
    }
}
