//! Pressure (PSI): share of the last ten seconds in which processes have waited for processors, memory or disks. It is
//! that of the process's own control group, or of its host if the group has none. Called by `findings`.

use std::fs;

use crate::process::control_groups::ControlGroups;

/// A resource for which processes wait.
struct Resource {
    /// Its name in the kernel.
    name: &'static str,
    /// The line that counts: `some` processes waited, or all of them (`full`).
    line: &'static str,
    /// The share of time from which on it is worth a finding, in percent.
    least_percent: f64,
    /// The words of the finding.
    words: &'static str,
}

const CPU: &str = "cpu";

/// A host is busy without harm: some process mostly waits for a processor, and a checkpoint for its disk. It is short of
/// memory as soon as all wait for it now and then.
const RESOURCES: [Resource; 3] = [
    Resource { name: "memory", line: "full", least_percent: 10.0, words: "all waited for memory" },
    Resource { name: "io", line: "full", least_percent: 40.0, words: "all waited for disks" },
    Resource { name: CPU, line: "some", least_percent: 80.0, words: "some waited for a processor" },
];

/// The findings of a process in these groups. `is_kept_waiting`: whether the process itself has waited for a processor.
/// If it has not, pressure on processors is no finding.
pub(super) fn pressed(
    groups: &ControlGroups,
    is_kept_waiting: bool,
) -> impl Iterator<Item = String> + use<'_> {
    let may_matter = move |resource: &&Resource| resource.name != CPU || is_kept_waiting;
    RESOURCES.iter().filter(may_matter).filter_map(|resource| {
        let of_host = || fs::read_to_string(format!("/proc/pressure/{}", resource.name)).ok();
        let (whose, text) = match groups.pressure(resource.name) {
            Some(text) => ("its control group", text),
            None => ("its host", of_host()?),
        };
        finding(resource, whose, &text)
    })
}

fn finding(resource: &Resource, whose: &str, text: &str) -> Option<String> {
    let percent = last_ten_seconds(text, resource.line)?;
    (percent >= resource.least_percent).then(|| {
        let words = resource.words;
        format!("of the processes of {whose}, {words} for {percent:.0} % of the last 10 s")
    })
}

/// The share of the last ten seconds, in percent, on a line such as `full avg10=1.50 avg60=0.00 avg300=0.00 total=7`.
fn last_ten_seconds(text: &str, line: &str) -> Option<f64> {
    let found = text.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(" avg10="))?;
    found.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_told_from_its_bound_on() {
        let [memory, _, cpu] = &RESOURCES;
        let text = "some avg10=81.25 avg60=0.00 avg300=0.00 total=7\n\
                    full avg10=9.99 avg60=50.00 avg300=0.00 total=7\n";
        assert_eq!(finding(memory, "its host", text), None);
        let told = finding(cpu, "its host", text);
        let words =
            "of the processes of its host, some waited for a processor for 81 % of the last 10 s";
        assert_eq!(told.as_deref(), Some(words));
        let text = "full avg10=10.00 avg60=0.00 avg300=0.00 total=7\n";
        let told = finding(memory, "its control group", text);
        let words = "of the processes of its control group, all waited for memory for 10 % of the last 10 s";
        assert_eq!(told.as_deref(), Some(words));
        assert_eq!(finding(cpu, "its host", text), None, "an older kernel has no such line");
        assert_eq!(finding(cpu, "its host", ""), None);
    }
}
