//! Answers to requests of the dashboard, from a snapshot. Called by `server` for each request.

use elastic_observe::{OPEN_METRICS_TYPE, PLAIN_TEXT_TYPE, open_metrics, plain_text};

use super::PublishedSnapshot;
use super::access::{Access, AccessDenied};
use super::request::{DashboardAnswer, DashboardRequest};

/// Answers one request. There is no route that changes anything.
pub(super) fn answer(
    request: &DashboardRequest,
    access: &Access,
    published: &PublishedSnapshot,
) -> DashboardAnswer {
    match access.check(request) {
        Ok(()) => {}
        Err(AccessDenied::NoToken) => {
            let text = "the job's token is needed: Authorization: Bearer TOKEN";
            return DashboardAnswer::plain("401 Unauthorized", text);
        }
        Err(AccessDenied::ForeignName) => {
            let text = "ask by address, or by localhost: http://127.0.0.1:PORT/";
            return DashboardAnswer::plain("421 Misdirected Request", text);
        }
    }
    if request.method != "GET" {
        return DashboardAnswer::plain("405 Method Not Allowed", "only GET is answered");
    }
    if request.path != "/metrics" {
        return DashboardAnswer::plain("404 Not Found", "there is /metrics, for Prometheus");
    }
    match published.last() {
        Some(snapshot) => {
            let reads_open_metrics = request
                .accept
                .as_ref()
                .is_some_and(|it| it.contains("application/openmetrics-text"));
            let (content_type, body) = match reads_open_metrics {
                true => (OPEN_METRICS_TYPE, open_metrics(&snapshot)),
                false => (PLAIN_TEXT_TYPE, plain_text(&snapshot)),
            };
            DashboardAnswer { status: "200 OK", content_type, body }
        }
        None => DashboardAnswer::plain("503 Service Unavailable", "the driver has just begun"),
    }
}
