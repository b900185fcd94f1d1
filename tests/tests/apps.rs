// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/apps`: its table of applications and inputs is whole, inputs become what the
//! applications read, and wrong options are told before anything is installed or run. The runs
//! themselves are `scripts/test`'s part "applications".

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

// Lists of files are what other tests need.
#[allow(dead_code)]
mod common;
use common::{ROOT, run, said, scratch};

/// A shell with the functions of the applications, in a directory.
fn shell(directory: &Path, script: &str) -> Command {
    let head =
        "set -euo pipefail; root=$1; . $root/scripts/lib/pypi.sh; . $root/scripts/lib/apps.sh; ";
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{head}{script}"), "apps", ROOT]);
    command.current_dir(directory);
    command
}

fn printed(script: &str) -> String {
    run(&mut shell(Path::new(ROOT), script))
}

/// The names of all applications.
fn names() -> Vec<String> {
    let names = printed("printf '%s\\n' \"${apps[@]}\"");
    names.lines().map(str::to_owned).collect()
}

#[test]
fn each_application_has_both_inputs() {
    let table = printed("echo \"$app_inputs\"");
    let mut inputs: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let Some((app, rest)) = line.split_once(' ') else {
            assert_eq!(line, "");
            continue;
        };
        let (input, words) = rest.trim_start().split_once(' ').expect("words");
        inputs.entry(app).or_default().push((input, words.trim()));
    }
    let names = names();
    let known: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert!(known.len() >= 16, "{known:?}");
    assert_eq!(inputs.keys().copied().collect::<BTreeSet<_>>(), known);
    for (app, inputs) in inputs {
        let [(normal, some), (strong, little)] = inputs[..] else {
            panic!("{app}: {inputs:?}");
        };
        assert_eq!((normal, strong), ("normal", "strong"), "{app}");
        assert_ne!(some, little, "{app}");
    }
}

#[test]
fn each_application_has_its_functions_and_packages() {
    let missing = printed(
        "for app in \"${apps[@]}\"; do
             [[ -n ${app_packages[$app]-} ]] || echo \"$app: no packages\"
             for what in prepare command result; do
                 declare -F \"${what}_$app\" >/dev/null || echo \"$app: no $what\"
             done
         done
         for app in \"${quick_apps[@]}\"; do
             [[ \" ${apps[*]} \" == *\" $app \"* ]] || echo \"quick: $app\"
         done",
    );
    assert_eq!(missing, "");
}

/// A file that the input of an application has become.
fn prepared(app: &str, input: &str, ranks: &str, file: &str) -> String {
    let place = scratch(&format!("apps-{app}-{input}"));
    let script = format!("input_of {app} {input}; prepare_{app} {ranks} openmpi");
    run(&mut shell(&place, &script));
    fs::read_to_string(place.join(file)).expect("there is an input")
}

#[test]
fn inputs_become_what_applications_read() {
    let argon = prepared("lammps", "strong", "4", "in.lj");
    assert!(argon.contains("region box block 0 8 0 8 0 8\n"), "{argon}");
    let argon = prepared("lammps", "normal", "4", "in.lj");
    assert!(
        argon.contains("region box block 0 20 0 20 0 20\n"),
        "{argon}"
    );
    // A list stands behind its length, and rows and columns of a matrix are the same.
    let factors = prepared("xdlu", "normal", "4", "LU.dat");
    let lines: Vec<&str> = factors.lines().collect();
    let sizes = "400 420 440 460 480 500";
    assert_eq!(lines[4..10], ["6", sizes, sizes, "3", "8 16 32", "1"]);
    // Two by two ranks.
    assert_eq!(lines[14..17], ["2", "2", "3.0"], "{lines:#?}");
    let inverse = prepared("xdinv", "strong", "2", "INV.dat");
    assert!(inverse.contains("\n2\n'GEN' 'UPD'\n"), "{inverse}");
    let one = prepared("nwchem", "strong", "2", "water.nw");
    let two = prepared("nwchem", "normal", "2", "water.nw");
    assert_eq!([&one, &two].map(|text| text.matches(" O ").count()), [1, 2]);
    assert!(one.contains("library sto-3g\n"), "{one}");
}

#[test]
fn inputs_reach_the_command() {
    let words = "printf '%s ' \"${argv[@]}\"";
    let strong = printed(&format!(
        "input_of cg strong; command_cg openmpi 2; {words}"
    ));
    let normal = printed(&format!(
        "input_of cg normal; command_cg openmpi 2; {words}"
    ));
    assert!(strong.starts_with("./cg ") && normal.starts_with("./cg "));
    assert_ne!(strong, normal);
    let absent = said(&mut shell(Path::new(ROOT), "input_of cg tiny"));
    assert!(!absent.status.success());
}

#[test]
fn wrong_options_are_told() {
    for (options, why) in [
        (
            &["--input", "weak"][..],
            "--input 'weak' is neither normal nor strong",
        ),
        (
            &["--input"],
            "--input needs a value, or is unknown (see --help)",
        ),
        (
            &["--moving", "-1"],
            "--moving '-1' is not a number of pairs",
        ),
        (
            &["--moving=some"],
            "--moving 'some' is not a number of pairs",
        ),
        (
            &["--ranks", "2,two"],
            "--ranks '2 two' is not a list of numbers",
        ),
        (&["--pairs", "0"], "--pairs '0' is not a number of pairs"),
        (&["--apps", "hpl"], "no application 'hpl'; there are lammps"),
        (
            &["--mpi", "mvapich"],
            "--mpi 'mvapich' is neither openmpi nor mpich",
        ),
        (
            &["--profile", "--ranks", "2,4"],
            "--profile takes one number of ranks",
        ),
        (
            &["--profile", "--csv", "x.csv"],
            "--profile compares nothing",
        ),
        (
            &["--profile", "--moving", "3"],
            "--profile compares nothing",
        ),
        (
            &["--profile", "--out", "/nowhere"],
            "--out '/nowhere' is no directory",
        ),
        (
            &["--csv", "/nowhere/x.csv"],
            "--csv '/nowhere/x.csv': there is no directory",
        ),
        (&["--sizes", "3"], "unknown option '--sizes' (see --help)"),
        (&["fftw"], "unknown argument 'fftw' (see --help)"),
    ] {
        let mut command = Command::new(Path::new(ROOT).join("scripts/apps"));
        let output = said(command.args(options));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {errors}");
        assert!(errors.contains(why), "{options:?}: {errors}");
        // One line, and nothing that was begun.
        assert_eq!(errors.lines().count(), 1, "{options:?}: {errors}");
    }
}

#[test]
fn help_names_all_options() {
    let script = Path::new(ROOT).join("scripts/apps");
    let help = run(Command::new(&script).arg("--help"));
    let text = fs::read_to_string(&script).expect("there is a script");
    let options = text.lines().filter_map(|line| {
        let option = line.trim_start().strip_prefix("--")?;
        let (name, _) = option.split_once(") ")?;
        name.chars().all(|c| c.is_ascii_lowercase()).then_some(name)
    });
    let options: Vec<&str> = options.collect();
    assert!(options.len() >= 10, "{options:?}");
    for option in options {
        assert!(
            help.contains(&format!("\n  --{option} ")),
            "--{option}: {help}"
        );
    }
}
