//! Requests of the dashboard, reduced to the parts in use, and its answers. Used by `server` and `answer`.

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, HeaderName, LOCATION, ORIGIN,
    SET_COOKIE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};

/// The content type of the news. A proxy such as nginx must pass each of them on at once.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// The parts of a request that matter here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct DashboardRequest {
    pub(super) method: String,
    /// The path, without the query.
    pub(super) path: String,
    pub(super) query: String,
    /// The name or address that the request was sent to.
    pub(super) host: Option<String>,
    /// The site whose page sent it, if a browser says so.
    pub(super) origin: Option<String>,
    pub(super) authorization: Option<String>,
    pub(super) cookie: Option<String>,
    /// The content types that the reader takes.
    pub(super) accept: Option<String>,
    /// The body; only a login has one that is read.
    pub(super) body: Bytes,
}

impl DashboardRequest {
    /// A request from its head.
    pub(super) fn new(head: &Parts) -> Self {
        let header = |name: HeaderName| {
            let value = head.headers.get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
        };
        Self {
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            host: header(HOST),
            origin: header(ORIGIN),
            authorization: header(AUTHORIZATION),
            cookie: header(COOKIE),
            accept: header(ACCEPT),
            body: Bytes::new(),
        }
    }

    /// Whether it only asks.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD")
    }

    /// Whether it carries the token of a login.
    pub(super) fn is_login(&self) -> bool {
        self.method == "POST" && self.path == "/login"
    }
}

/// The value of a field in a query or a form: `a=1&b=x%20y`. None if it is not there.
pub(super) fn form_field(form: &[u8], name: &str) -> Option<String> {
    let field = form.split(|byte| *byte == b'&').find_map(|field| {
        let at = field.iter().position(|byte| *byte == b'=')?;
        (&field[..at] == name.as_bytes()).then_some(&field[at + 1..])
    })?;
    let mut decoded = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        let digits = tail.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                decoded.push(code);
                rest = &tail[2..];
            }
            (b'+', _) => decoded.push(b' '),
            (other, _) => decoded.push(*other),
        }
    }
    String::from_utf8(decoded).ok()
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct DashboardAnswer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
    /// A cookie to keep.
    pub(super) cookie: Option<String>,
    /// Whether the reader is to ask for the page next.
    pub(super) leads_to_page: bool,
}

impl DashboardAnswer {
    /// An answer with a body.
    pub(super) const fn new(status: StatusCode, content_type: &'static str, body: Bytes) -> Self {
        Self { status, content_type, body, cookie: None, leads_to_page: false }
    }

    /// An answer for people.
    pub(super) fn plain(status: StatusCode, text: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", Bytes::from(format!("{text}\n")))
    }

    /// The head of the answer.
    pub(super) fn head(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let mut set = |name: HeaderName, text: &str| {
            // All are literals, or made of hexadecimal digits and a port.
            if let Ok(value) = text.parse() {
                headers.insert(name, value);
            }
        };
        set(CONTENT_TYPE, self.content_type);
        if let Some(cookie) = &self.cookie {
            set(SET_COOKIE, cookie);
        }
        if self.leads_to_page {
            set(LOCATION, "/");
        }
        if self.content_type == EVENT_STREAM {
            set(HeaderName::from_static("x-accel-buffering"), "no");
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            set(ALLOW, "GET, HEAD");
        }
        if self.status == StatusCode::UNAUTHORIZED {
            set(hyper::header::WWW_AUTHENTICATE, "Bearer");
        }
        protect(response.headers_mut());
        response
    }
}

/// Restrictions on a browser: it may load the page's files from the same place, and nothing else. No script and no
/// style in the page itself, nothing kept, nothing framed, nothing interpreted as another type.
const PROTECTION: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

fn protect(headers: &mut HeaderMap) {
    for (name, value) in PROTECTION {
        headers
            .insert(HeaderName::from_static(name), hyper::header::HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_form_are_decoded() {
        let form = b"a=1&token=x%2By+z%zz%2&b";
        assert_eq!(form_field(form, "token").as_deref(), Some("x+y z%zz%2"));
        assert_eq!(form_field(form, "a").as_deref(), Some("1"));
        assert_eq!((form_field(form, "b"), form_field(form, "c")), (None, None));
        assert_eq!(form_field(b"a=%ff", "a"), None, "no text");
    }

    #[test]
    fn every_answer_says_what_a_browser_may_do() {
        let head = DashboardAnswer::plain(StatusCode::NOT_FOUND, "no").head();
        let policy = head.headers().get("content-security-policy").expect("a policy");
        let policy = policy.to_str().expect("ASCII");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(
            head.headers().get("cache-control").map(|it| it.as_bytes()),
            Some(&b"no-store"[..])
        );
    }
}
