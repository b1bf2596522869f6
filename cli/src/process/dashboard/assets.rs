//! The files of the page, in the binary. uPlot draws its charts: https://github.com/leeoniya/uPlot, from npm, MIT.
//! Called by `answer`.

/// A file of the page.
pub(super) struct Asset {
    pub(super) content_type: &'static str,
    pub(super) body: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The form for the job's token.
pub(super) const LOGIN: Asset =
    Asset { content_type: HTML, body: include_bytes!("assets/login.html") };

/// The files that give the login form its looks, for readers who have not shown a token yet.
pub(super) fn open_asset(path: &str) -> Option<Asset> {
    let (content_type, body): (&str, &[u8]) = match path {
        "/login.css" => (CSS, include_bytes!("assets/login.css")),
        "/icon.svg" => ("image/svg+xml", include_bytes!("assets/icon.svg")),
        _ => return None,
    };
    Some(Asset { content_type, body })
}

/// The file at a path.
pub(super) fn asset(path: &str) -> Option<Asset> {
    let (content_type, body): (&str, &[u8]) = match path {
        "/" => (HTML, include_bytes!("assets/page.html")),
        "/page.css" => (CSS, include_bytes!("assets/page.css")),
        "/page.js" => (SCRIPT, include_bytes!("assets/page.js")),
        "/charts.js" => (SCRIPT, include_bytes!("assets/charts.js")),
        "/heat.js" => (SCRIPT, include_bytes!("assets/heat.js")),
        "/uplot/uPlot.iife.min.js" => (SCRIPT, include_bytes!("assets/uplot/uPlot.iife.min.js")),
        "/uplot/uPlot.min.css" => (CSS, include_bytes!("assets/uplot/uPlot.min.css")),
        "/uplot/LICENSE" => ("text/plain; charset=utf-8", include_bytes!("assets/uplot/LICENSE")),
        _ => return open_asset(path),
    };
    Some(Asset { content_type, body })
}
