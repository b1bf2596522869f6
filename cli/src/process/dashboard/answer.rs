//! Answers to requests of the dashboard, from a snapshot. Called by `server` for each request.

use elastic_observe::{OPEN_METRICS_TYPE, PLAIN_TEXT_TYPE, open_metrics, plain_text};
use elastic_protocol::messages::WorkerStatus;
use hyper::StatusCode;
use hyper::body::Bytes;

use super::PublishedSnapshot;
use super::access::{Access, AccessDenied};
use super::assets::{Asset, LOGIN, asset, open_asset};
use super::output::OutputQuery;
use super::request::{DashboardAnswer, DashboardRequest, EVENT_STREAM, form_field};

/// The outcome of a request.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum DashboardRoute {
    /// An answer.
    Answer(DashboardAnswer),
    /// News of the job for as long as the page is open.
    News,
    /// A part of a worker's output, which has to be read.
    Output(OutputQuery),
}

/// The content type of JSON.
pub(super) const JSON: &str = "application/json";

/// Answers one request. There is no route that changes anything but the login.
pub(super) fn answer(
    request: &DashboardRequest,
    access: &Access,
    published: &PublishedSnapshot,
) -> DashboardRoute {
    if request.is_login() && access.has_login() {
        return DashboardRoute::Answer(log_in(request, access));
    }
    match access.check(request) {
        Ok(()) => {}
        Err(denied) => return DashboardRoute::Answer(refuse(request, denied)),
    }
    if !request.is_read() {
        let text = "only GET and HEAD are answered";
        return DashboardRoute::Answer(DashboardAnswer::plain(
            StatusCode::METHOD_NOT_ALLOWED,
            text,
        ));
    }
    DashboardRoute::Answer(match request.path.as_str() {
        "/news" if request.method == "HEAD" => {
            DashboardAnswer::new(StatusCode::OK, EVENT_STREAM, Bytes::new())
        }
        "/news" => return DashboardRoute::News,
        "/metrics" => metrics(request, published),
        "/workers" => workers(request, published),
        "/output" => match OutputQuery::parse(&request.query) {
            Some(query) => return DashboardRoute::Output(query),
            None => {
                let text = "ask for /output?rank=RANK&stream=stdout, or stream=stderr";
                DashboardAnswer::plain(StatusCode::BAD_REQUEST, text)
            }
        },
        path => match asset(path) {
            Some(asset) => of_asset(&asset),
            None => {
                let text = "there is / for people, and /metrics for Prometheus";
                DashboardAnswer::plain(StatusCode::NOT_FOUND, text)
            }
        },
    })
}

fn of_asset(asset: &Asset) -> DashboardAnswer {
    DashboardAnswer::new(StatusCode::OK, asset.content_type, Bytes::from_static(asset.body))
}

fn log_in(request: &DashboardRequest, access: &Access) -> DashboardAnswer {
    match access.log_in(request) {
        Ok(cookie) => DashboardAnswer {
            cookie: Some(cookie),
            leads_to_page: true,
            ..DashboardAnswer::plain(StatusCode::SEE_OTHER, "logged in")
        },
        Err(denied @ (AccessDenied::ForeignName | AccessDenied::ForeignPage)) => {
            refuse(request, denied)
        }
        Err(AccessDenied::NoToken) => {
            DashboardAnswer { status: StatusCode::UNAUTHORIZED, ..of_asset(&LOGIN) }
        }
    }
}

/// The answer to a reader without access: a request for the page gets the form for the token.
fn refuse(request: &DashboardRequest, denied: AccessDenied) -> DashboardAnswer {
    let is_read = request.is_read();
    match denied {
        AccessDenied::NoToken if is_read && request.path == "/" => {
            DashboardAnswer { status: StatusCode::UNAUTHORIZED, ..of_asset(&LOGIN) }
        }
        AccessDenied::NoToken => match open_asset(&request.path).filter(|_| is_read) {
            Some(asset) => of_asset(&asset),
            None => DashboardAnswer::plain(
                StatusCode::UNAUTHORIZED,
                "the job's token is needed: Authorization: Bearer TOKEN, or the form at /",
            ),
        },
        AccessDenied::ForeignName => DashboardAnswer::plain(
            StatusCode::MISDIRECTED_REQUEST,
            "ask by address, or by localhost: http://127.0.0.1:PORT/",
        ),
        AccessDenied::ForeignPage => DashboardAnswer::plain(
            StatusCode::MISDIRECTED_REQUEST,
            "the form was sent to another name than its page came from: a proxy in front has to pass the browser's Host on \
             (nginx: proxy_set_header Host $http_host)",
        ),
    }
}

fn metrics(request: &DashboardRequest, published: &PublishedSnapshot) -> DashboardAnswer {
    let Some(snapshot) = published.last() else { return too_early() };
    let reads_open_metrics =
        request.accept.as_ref().is_some_and(|it| it.contains("application/openmetrics-text"));
    let (content_type, body) = match reads_open_metrics {
        true => (OPEN_METRICS_TYPE, open_metrics(&snapshot)),
        false => (PLAIN_TEXT_TYPE, plain_text(&snapshot)),
    };
    DashboardAnswer::new(StatusCode::OK, content_type, Bytes::from(body))
}

/// The workers of one host.
fn workers(request: &DashboardRequest, published: &PublishedSnapshot) -> DashboardAnswer {
    let Some(snapshot) = published.last() else { return too_early() };
    let host = form_field(request.query.as_bytes(), "host").unwrap_or_default();
    let workers = snapshot.status.workers.iter().filter(|worker| worker.host.as_str() == host);
    let workers: Vec<&WorkerStatus> = workers.collect();
    let json = serde_json::to_vec(&workers).unwrap_or_default();
    DashboardAnswer::new(StatusCode::OK, JSON, Bytes::from(json))
}

fn too_early() -> DashboardAnswer {
    DashboardAnswer::plain(StatusCode::SERVICE_UNAVAILABLE, "the driver has just begun")
}

#[cfg(test)]
mod tests {
    use super::super::access::access;
    use super::*;

    fn get(path: &str) -> DashboardRequest {
        DashboardRequest {
            method: "GET".to_owned(),
            path: path.to_owned(),
            host: Some("127.0.0.1:9".to_owned()),
            ..DashboardRequest::default()
        }
    }

    fn answered(request: &DashboardRequest, address: &str) -> DashboardAnswer {
        match answer(request, &access(address), &PublishedSnapshot::default()) {
            DashboardRoute::Answer(answer) => answer,
            route => panic!("it is no answer: {route:?}"),
        }
    }

    fn text(answer: &DashboardAnswer) -> String {
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// All paths that are answered.
    const PATHS: [&str; 11] = [
        "/",
        "/page.css",
        "/page.js",
        "/charts.js",
        "/uplot/uPlot.iife.min.js",
        "/uplot/uPlot.min.css",
        "/uplot/LICENSE",
        "/metrics",
        "/workers",
        "/output",
        "/news",
    ];

    #[test]
    fn without_the_token_there_is_the_form_and_nothing_else() {
        for path in PATHS {
            let answer = answered(&get(path), "10.0.0.1:9");
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(text(&answer).contains("name=\"token\""), path == "/", "{path}");
        }
        // The form's looks, which are the same for every job.
        assert_eq!(answered(&get("/login.css"), "10.0.0.1:9").status, StatusCode::OK);
        let login = DashboardRequest {
            method: "POST".to_owned(),
            body: Bytes::from_static(b"token=wrong"),
            ..get("/login")
        };
        let answer = answered(&login, "10.0.0.1:9");
        assert_eq!((answer.status, &answer.cookie), (StatusCode::UNAUTHORIZED, &None));
    }

    #[test]
    fn the_token_in_the_form_leads_to_the_page_by_a_cookie() {
        let (access, published) = (access("10.0.0.1:9"), PublishedSnapshot::default());
        let login = DashboardRequest {
            method: "POST".to_owned(),
            body: Bytes::from_static(b"token=secret%2B%2F"),
            ..get("/login")
        };
        let DashboardRoute::Answer(first) = answer(&login, &access, &published) else {
            panic!("a login is answered")
        };
        assert_eq!((first.status, first.leads_to_page), (StatusCode::SEE_OTHER, true));
        let head = first.head();
        assert_eq!(head.headers()["location"], "/");
        let cookie = head.headers()["set-cookie"].to_str().expect("ASCII").to_owned();
        let cookie = cookie.split(';').next().map(ToOwned::to_owned);
        let page = DashboardRequest { cookie: cookie.clone(), ..get("/") };
        let DashboardRoute::Answer(page) = answer(&page, &access, &published) else {
            panic!("the page is an answer")
        };
        assert_eq!(page.status, StatusCode::OK);
        assert!(!text(&page).contains("name=\"token\""), "{}", text(&page));
        let news = DashboardRequest { cookie, ..get("/news") };
        assert_eq!(answer(&news, &access, &published), DashboardRoute::News);
    }

    #[test]
    fn on_loopback_the_page_is_open_to_addresses_and_closed_to_names() {
        for path in PATHS.into_iter().filter(|path| *path != "/news") {
            let status = answered(&get(path), "127.0.0.1:9").status;
            let expected = match path {
                "/metrics" | "/workers" => StatusCode::SERVICE_UNAVAILABLE,
                "/output" => StatusCode::BAD_REQUEST,
                _ => StatusCode::OK,
            };
            assert_eq!(status, expected, "{path}");
            let foreign = DashboardRequest { host: Some("evil.example".to_owned()), ..get(path) };
            let answer = answered(&foreign, "127.0.0.1:9");
            assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST, "{path}");
        }
    }

    #[test]
    fn output_is_for_those_who_may_read_the_page() {
        let request =
            DashboardRequest { query: "rank=1&stream=stderr".to_owned(), ..get("/output") };
        let published = PublishedSnapshot::default();
        let route = answer(&request, &access("127.0.0.1:9"), &published);
        assert!(matches!(route, DashboardRoute::Output(_)), "{route:?}");
        let denied = answered(&request, "10.0.0.1:9");
        assert_eq!(denied.status, StatusCode::UNAUTHORIZED);
        let foreign = DashboardRequest { host: Some("evil.example".to_owned()), ..request };
        assert_eq!(answered(&foreign, "127.0.0.1:9").status, StatusCode::MISDIRECTED_REQUEST);
    }

    #[test]
    fn head_is_answered_as_get_is_and_opens_no_stream() {
        let head = |path: &str| DashboardRequest { method: "HEAD".to_owned(), ..get(path) };
        for address in ["127.0.0.1:9", "10.0.0.1:9"] {
            for path in PATHS.into_iter().filter(|path| *path != "/news") {
                assert_eq!(answered(&head(path), address), answered(&get(path), address), "{path}");
            }
        }
        let news = answered(&head("/news"), "127.0.0.1:9");
        assert_eq!(news.status, StatusCode::OK);
        // Proxies such as nginx would keep the news to themselves.
        assert_eq!(news.head().headers()["x-accel-buffering"], "no");
        let refused = DashboardRequest { method: "PUT".to_owned(), ..get("/") };
        assert_eq!(answered(&refused, "127.0.0.1:9").head().headers()["allow"], "GET, HEAD");
    }

    #[test]
    fn a_form_that_comes_through_a_proxy_with_another_name_is_told_what_the_proxy_has_to_pass_on() {
        let login = DashboardRequest {
            method: "POST".to_owned(),
            origin: Some("https://job.example".to_owned()),
            body: Bytes::from_static(b"token=secret%2B%2F"),
            ..get("/login")
        };
        let refused = answered(&login, "10.0.0.1:9");
        assert_eq!(refused.status, StatusCode::MISDIRECTED_REQUEST);
        assert!(text(&refused).contains("Host"), "{}", text(&refused));
        let passed_on = DashboardRequest { host: Some("job.example".to_owned()), ..login };
        assert_eq!(answered(&passed_on, "10.0.0.1:9").status, StatusCode::SEE_OTHER);
    }

    #[test]
    fn no_route_changes_anything() {
        for path in PATHS.into_iter().chain(["/login", "/kill", "/hosts"]) {
            for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
                let request = DashboardRequest { method: method.to_owned(), ..get(path) };
                let status = answered(&request, "127.0.0.1:9").status;
                assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            }
        }
        assert_eq!(answered(&get("/kill"), "127.0.0.1:9").status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_page_has_no_script_and_no_style_of_its_own_and_names_no_other_place() {
        for path in ["/", "/page.js", "/charts.js", "/page.css", "/login.css"] {
            let text = text(&answered(&get(path), "127.0.0.1:9"));
            for foreign in ["http://", "https://", "//cdn", "innerHTML", "eval("] {
                assert!(
                    !text.replace("http://www.w3.org/2000/svg", "").contains(foreign),
                    "{path}"
                );
            }
        }
        let login = String::from_utf8_lossy(LOGIN.body).into_owned();
        for html in [text(&answered(&get("/"), "127.0.0.1:9")), login] {
            for inline in ["<script>", "<style", " style=", " onclick=", " onload="] {
                assert!(!html.contains(inline), "{inline}");
            }
        }
    }
}
