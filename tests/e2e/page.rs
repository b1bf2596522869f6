//! The job's page, in a real browser. If Debian's chromium is not installed, these tests say so and pass, unless
//! `ELASTIC_REQUIRE_CHROMIUM` is set, as the project's checks do. Their pictures are kept in `target/tmp/pictures`.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::browser::{Browser, is_browser_here};
use crate::support::{Job, signal};

/// A host name that would be a script, if it were markup.
const HOSTILE: &str = "<script>window.hostile=1</script><img/src=x/onerror=window.hostile=1>";

/// The address of a job's page.
fn page_of(job: &mut Job) -> String {
    job.wait("the page's address", |job| Some(job.status()?["dashboard"].as_str()?.to_owned()))
}

/// The page has no way to change the script's world from text, and nothing came from elsewhere.
fn assert_nothing_foreign(browser: &Browser, url: &str) {
    assert_eq!(browser.run("return window.hostile === undefined"), true);
    let loaded = browser.run("return performance.getEntriesByType('resource').map(it => it.name)");
    let loaded: Vec<&str> =
        loaded.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(loaded.len() >= 5, "{loaded:?}");
    assert!(loaded.iter().all(|it| it.starts_with(url)), "{loaded:?}");
    // A script that gets into the page all the same is not run.
    let inline = "try { const it = document.createElement('script'); it.textContent = 'window.hostile = 1'; \
                  document.body.append(it); } catch {} return window.hostile === undefined";
    assert_eq!(browser.run(inline), true);
}

#[test]
fn the_page_follows_a_job_and_what_a_host_is_called_stays_text() {
    if !is_browser_here() {
        return;
    }
    let flags = ["-n", "3", "--min-np", "2", "--dashboard", "127.0.0.1:0"];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.agent_named(HOSTILE);
    job.wait_for_sizes(&[3]);
    let url = page_of(&mut job);
    let browser = Browser::start();
    browser.show_on(1400, "light");
    browser.open(&url);
    browser.wait_for("document.querySelectorAll('#fleet .host').length === 3");
    browser.wait_for("document.querySelectorAll('#fleet .b-training').length === 3");
    browser.wait_for("document.querySelectorAll('#world canvas, #goodput canvas').length === 2");
    let shown = browser.run("return document.getElementById('fleet').textContent");
    assert!(shown.as_str().is_some_and(|text| text.contains(HOSTILE)), "{shown}");

    signal(job.pid("b", 0), Signal::SIGKILL);
    // The reset's cause may be the survivors' broken connections, if they are known first.
    browser.wait_for("document.getElementById('events').textContent.includes('SIGKILL')");
    browser.wait_for("document.getElementById('resets').textContent.includes('b:0')");
    browser.wait_for("document.querySelector('#events .warn').textContent.length > 0");
    browser.wait_for("document.querySelector('.tiles').textContent.includes('1')");
    // The slot is filled again, and its worker joins.
    browser.wait_for("document.querySelectorAll('#fleet .b-training').length === 3");

    // The numbers that the program reports, over time.
    browser.wait_for("document.querySelectorAll('#reported canvas').length === 2");
    browser.wait_for(
        "[...document.querySelectorAll('#reported h3')].map(it => it.textContent).join() === 'epoch,loss'",
    );
    browser.wait_for(
        "/loss[0-9:]+: [0-9.]+ \\([0-9.]+ to [0-9.]+\\)$/.test(document.getElementById('reported').textContent)",
    );

    // Filter and search.
    browser.type_into("#search", "sigkill");
    browser.wait_for(
        "document.querySelectorAll('#events li').length > 0 && \
         [...document.querySelectorAll('#events li')].every(it => /sigkill/i.test(it.textContent))",
    );
    browser.run("const it = document.getElementById('topic'); it.value = 'checkpoint'; it.dispatchEvent(new Event('change'))");
    browser.wait_for("document.querySelectorAll('#events li').length === 0");
    browser.run("document.getElementById('search').value = ''; const it = document.getElementById('topic'); it.value = ''; it.dispatchEvent(new Event('change'))");

    // A host's workers, by the keyboard alone.
    browser.run("document.querySelector('#fleet .host').focus()");
    browser.type_into("#fleet .host", "\u{e007}");
    browser.wait_for("document.querySelectorAll('#host-workers tr').length === 1");
    browser.wait_for(
        "/epoch \\d+, loss \\d/.test(document.getElementById('host-workers').textContent)",
    );
    browser.run("document.getElementById('host').close()");

    browser.keep_picture("page-light");
    browser.show_on(1400, "dark");
    browser.keep_picture("page-dark");
    browser.show_on(360, "light");
    browser.wait_for(
        "innerWidth === 360 && document.querySelector('#world canvas').clientWidth < 340",
    );
    let width = browser.run("return document.documentElement.scrollWidth");
    assert!(width.as_u64().is_some_and(|width| width <= 360), "{width}");
    browser.keep_picture("page-360");

    // Any complaint of the browser from here on would be the page's own fault.
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert_nothing_foreign(&browser, &url);
    assert_eq!(job.finish(), 0);
    browser.wait_for("document.getElementById('link').className.includes('gone')");
}

/// The README's picture: copied by hand from `target/tmp/pictures/readme.png` to `docs/pictures/page.png`.
#[test]
fn a_job_that_lost_a_worker_and_won_a_host_is_shown_with_both_resets() {
    if !is_browser_here() {
        return;
    }
    let mut job = Job::start(&["-n", "4", "--min-np", "2", "--dashboard", "127.0.0.1:0"], &[]);
    job.agent("node1", 2);
    job.agent("node2", 2);
    job.wait_for_sizes(&[4]);
    let browser = Browser::start();
    browser.show_on(1400, "light");
    browser.open(&page_of(&mut job));
    browser.wait_for("document.querySelectorAll('#fleet .b-training').length === 4");
    signal(job.pid("node2", 1), Signal::SIGKILL);
    browser.wait_for("document.getElementById('events').textContent.includes('SIGKILL')");
    browser.wait_for("document.getElementById('resets').textContent.includes('node2:1')");
    browser.wait_for("document.querySelectorAll('#fleet .b-training').length === 4");
    job.agent("node3", 2);
    browser.wait_for("document.querySelectorAll('#fleet .b-training').length === 6");
    browser.wait_for("document.getElementById('resets').textContent.includes('node3')");
    browser.keep_picture("readme");
    assert_eq!(job.finish(), 0);
}

#[test]
fn the_output_of_a_chosen_worker_is_shown_live_whole_and_as_text() {
    if !is_browser_here() {
        return;
    }
    let text = format!(
        "n=0; until test -e CONTROL/finish; do n=$((n + 1)); echo \"line $n {HOSTILE}\"; sleep 0.05; done"
    );
    let program = ["/bin/sh", "-c", &text].map(ToOwned::to_owned);
    let flags = ["-n", "2", "--dashboard", "127.0.0.1:0", "--output-dir", "DIR/out"];
    let mut job = Job::start_program(&flags, &program);
    job.agent("a", 2);
    let url = page_of(&mut job);
    let browser = Browser::start();
    browser.open(&url);
    browser.wait_for("document.querySelectorAll('#fleet .host').length === 1");
    browser.run("document.querySelector('#fleet .host').click()");
    browser.wait_for("document.querySelectorAll('#output-rank option').length === 3");
    let choose = |id: &str, value: &str| {
        let event = "it.dispatchEvent(new Event('change'))";
        browser.run(&format!(
            "const it = document.getElementById('{id}'); it.value = '{value}'; {event}"
        ));
    };
    choose("output-rank", "1");
    browser.wait_for(
        "document.getElementById('output').textContent.split('\\n').length > 60 && \
         document.getElementById('output').textContent.match(/line \\d+/g)\
         .every((it, index) => it === `line ${index + 1}`)",
    );
    let shown = browser.run("return document.getElementById('output').textContent");
    assert!(shown.as_str().is_some_and(|text| text.contains(HOSTILE)), "{shown}");
    assert_eq!(browser.run("return document.getElementById('output').children.length"), 0);
    browser.keep_picture("page-output");
    choose("output-stream", "stderr");
    browser.wait_for("document.getElementById('output').textContent === ''");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert_nothing_foreign(&browser, &url);
    assert_eq!(job.finish(), 0);
}

#[test]
fn beyond_loopback_the_token_opens_the_page_once_for_all() {
    if !is_browser_here() {
        return;
    }
    let flags = ["-n", "1", "--min-np", "1", "--dashboard", "0.0.0.0:0"];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let url = page_of(&mut job);
    let browser = Browser::start();
    browser.open(&url);
    browser.type_into("#token", "wrong\u{e007}");
    browser.wait_for(
        "document.querySelector('#token') && document.querySelector('#token').value === ''",
    );
    assert_eq!(browser.run("return document.getElementById('fleet')"), Value::Null);
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    browser.type_into("#token", &format!("{}\u{e007}", token.trim()));
    browser.wait_for("document.querySelectorAll('#fleet .host').length === 1");
    assert_eq!(browser.run("return document.cookie"), "", "no script reads it");
    browser.open(&url);
    browser.wait_for("document.querySelectorAll('#fleet .host').length === 1");
    assert_nothing_foreign(&browser, &url);
    assert_eq!(job.finish(), 0);
}
