//! Compiles the copy with all mutants in it, and takes back the mutants that do not compile. Used by `mutants`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use cargo_metadata::diagnostic::{Diagnostic, DiagnosticLevel, DiagnosticSpan};
use cargo_metadata::{Message, TargetKind};

use super::mutant::Mutant;
use super::scope::{self, SourceFile};
use super::splice::{Spliced, splice};
use super::workspace::{Copy, SIMULATION};
use crate::steps::root;

/// Most rounds of taking mutants back: the compiler reports type errors first, then borrow errors.
const ROUNDS_MAX: usize = 20;

/// A program that was built.
#[derive(Clone, Debug)]
pub(crate) struct BuiltProgram {
    /// The package's name, such as `elastic-driver`, and the target within it.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The package's folder.
    pub(crate) folder: PathBuf,
}

/// The result of a build.
#[derive(Debug)]
pub(crate) struct Built {
    /// The mutants that compile, by number.
    pub(crate) mutants: BTreeMap<u32, Mutant>,
    /// The number of mutants that do not compile.
    pub(crate) taken_back: usize,
    pub(crate) simulation: BuiltProgram,
    pub(crate) tests: Vec<BuiltProgram>,
}

/// Builds the simulation and the test programs of every package that is mutated.
pub(crate) fn build(
    copy: &Copy,
    files: &[SourceFile],
    mutants: Vec<Mutant>,
    unconst: &BTreeSet<String>,
) -> anyhow::Result<Built> {
    let all = mutants.len();
    let mut mutants: BTreeMap<u32, Mutant> = (0..).zip(mutants).collect();
    let packages = packages(copy, &mutants)?;
    let mut test = vec!["test", "--no-run", "--no-fail-fast", "--lib"];
    for package in &packages {
        test.extend(["--package", package]);
    }
    let simulation = ["build", "--release", "--package", "sim", "--bin", SIMULATION];
    for _ in 0..ROUNDS_MAX {
        let spliced = write(copy, files, &mutants, unconst)?;
        let before = mutants.len();
        let tests = cargo(copy, &test, &spliced, &mut mutants)?;
        let simulation = match &tests {
            Some(_) => cargo(copy, &simulation, &spliced, &mut mutants)?,
            None => None,
        };
        if let (Some(tests), Some(mut simulation)) = (tests, simulation) {
            let simulation = simulation.pop().context("cargo tells of the simulation's program")?;
            return Ok(Built { taken_back: all - mutants.len(), mutants, simulation, tests });
        }
        let mut stderr = std::io::stderr();
        writeln!(stderr, "{} of {all} mutants do not compile", before - mutants.len())?;
    }
    bail!("after {ROUNDS_MAX} rounds the mutants still do not compile")
}

/// The names of the packages that have mutants.
fn packages(copy: &Copy, mutants: &BTreeMap<u32, Mutant>) -> anyhow::Result<BTreeSet<String>> {
    let folders: BTreeSet<&str> =
        mutants.values().filter_map(|mutant| Some(mutant.file.split_once("/src/")?.0)).collect();
    let name = |folder: &str| -> anyhow::Result<String> {
        let manifest = fs::read_to_string(copy.root.join(folder).join("Cargo.toml"))?;
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
        Ok(name.context("a package has a name")?.trim_matches('"').to_owned())
    };
    folders.into_iter().map(name).collect()
}

/// Writes all Rust files, those in scope with their mutants.
fn write(
    copy: &Copy,
    files: &[SourceFile],
    mutants: &BTreeMap<u32, Mutant>,
    unconst: &BTreeSet<String>,
) -> anyhow::Result<BTreeMap<String, Spliced>> {
    let mut of_file: BTreeMap<&str, Vec<(u32, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants {
        of_file.entry(&mutant.file).or_default().push((*number, mutant));
    }
    // A package mutated in an earlier run keeps its switch, so that less is compiled again.
    let switched: BTreeSet<&str> = files.iter().map(SourceFile::package).collect();
    let texts: BTreeMap<&str, &str> =
        files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let mut spliced = BTreeMap::new();
    for path in scope::all_sources(&root()?)? {
        let text = match texts.get(path.as_str()) {
            Some(text) => (*text).to_owned(),
            None => fs::read_to_string(root()?.join(&path))?,
        };
        let own = of_file.get(path.as_str()).map_or(&[][..], Vec::as_slice);
        // A file without mutants calls functions that have lost their `const`, too.
        let with = splice(&text, own, unconst);
        let is_root =
            path.strip_suffix("/src/lib.rs").is_some_and(|package| switched.contains(package));
        match is_root {
            true => copy.write_with_switch(&path, &with.text)?,
            false => copy.write(&path, with.text.as_bytes())?,
        }
        if !own.is_empty() {
            spliced.insert(path, with);
        }
    }
    Ok(spliced)
}

/// Runs cargo. Returns the programs, or none where mutants were taken back.
fn cargo(
    copy: &Copy,
    arguments: &[&str],
    spliced: &BTreeMap<String, Spliced>,
    mutants: &mut BTreeMap<u32, Mutant>,
) -> anyhow::Result<Option<Vec<BuiltProgram>>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let said = copy.builds.join("mutants").join("cargo.log");
    let mut child = Command::new(cargo)
        .args(arguments)
        .args(["--locked", "--message-format=json", "--target-dir"])
        .arg(&copy.builds)
        .current_dir(&copy.root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&said)?)
        .spawn()
        .context("cargo cannot be started")?;
    let stdout = child.stdout.take().context("cargo's stdout is a pipe")?;
    let (mut programs, mut faulty) = (Vec::new(), BTreeSet::new());
    let mut unexplained = Vec::new();
    for message in Message::parse_stream(BufReader::new(stdout)) {
        match message? {
            Message::CompilerMessage(told) if told.message.level == DiagnosticLevel::Error => {
                let about = about(&told.message, spliced);
                if about.is_empty() {
                    unexplained.push(told.message.rendered.unwrap_or(told.message.message));
                }
                faulty.extend(about);
            }
            Message::CompilerArtifact(artifact) => {
                let Some(path) = artifact.executable else { continue };
                let folder =
                    artifact.manifest_path.parent().context("a manifest is in a folder")?;
                let package = folder.file_name().unwrap_or_default();
                let name = match artifact.target.kind.contains(&TargetKind::Lib) {
                    true => package.to_owned(),
                    false => format!("{package}/{}", artifact.target.name),
                };
                programs.push(BuiltProgram { name, path: path.into(), folder: folder.into() });
            }
            _ => {}
        }
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(Some(programs));
    }
    let before = mutants.len();
    mutants.retain(|number, _| !faulty.contains(number));
    ensure!(
        mutants.len() < before,
        "the copy in {} cannot be compiled, and not for a mutant\n{}{}",
        copy.root.display(),
        unexplained.join("\n"),
        fs::read_to_string(&said)?
    );
    Ok(None)
}

/// A way to find the mutants that caused a compiler error.
type SpanLookup = fn(&Spliced, &Range<usize>) -> Vec<u32>;

/// The mutants that caused a compiler error.
fn about(fault: &Diagnostic, spliced: &BTreeMap<String, Spliced>) -> BTreeSet<u32> {
    let bytes = |span: &DiagnosticSpan| span.byte_start as usize..span.byte_end as usize;
    let found = |find: SpanLookup, primary: bool| {
        let spans = fault.spans.iter().filter(|span| span.is_primary || !primary);
        let found =
            spans.filter_map(|span| Some(find(spliced.get(&span.file_name)?, &bytes(span))));
        found.flatten().collect::<BTreeSet<u32>>()
    };
    let ways: [(SpanLookup, bool); 3] =
        [(Spliced::at, true), (Spliced::at, false), (Spliced::in_function, false)];
    let mut answers = ways.into_iter().map(|(find, primary)| found(find, primary));
    answers.find(|numbers| !numbers.is_empty()).unwrap_or_default()
}
