// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy info` tells scripts.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{output, text};
use serde_json::Value;

/// The tool: beside this test's directory where tests were copied elsewhere, or where cargo has it.
fn tool() -> PathBuf {
    let own = std::env::current_exe().expect("this test is a file");
    let copied = own.ancestors().nth(2).expect("cargo's layout");
    if copied.ends_with("guest") {
        copied.join("libcopy")
    } else {
        common::TOOL.into()
    }
}

fn command(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(tool());
    command.arg("info").args(arguments);
    command
        .env_remove("LIBCOPY_TRANSPORT")
        .envs(environment.iter().copied());
    command
}

fn info(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    common::said(&mut command(arguments, environment))
}

fn json(environment: &[(&str, &str)]) -> Value {
    common::json(&mut command(&["--json"], environment))
}

#[test]
fn json_says_what_a_script_wants_to_know() {
    let all = json(&[]);
    assert_eq!(all["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(all["abi_version"], libcopy::uapi::ABI_VERSION);

    // The same that the library says.
    let reports = libcopy::transport::probe_machine();
    let transports = all["transports"].as_array().expect("a list");
    assert_eq!(transports.len(), reports.len());
    for (told, report) in transports.iter().zip(&reports) {
        assert_eq!(told["name"], report.kind.name());
        assert_eq!(told["usable"], report.usable, "{told}");
        assert_eq!(told["why"], *report.why);
    }
    let device = libcopy::device::Device::open().and_then(|device| device.info());
    assert_eq!(all["device"]["usable"], device.is_ok());
    match device {
        Ok(info) => {
            assert_eq!(all["device"]["abi_version"], info.abi_version);
            assert_eq!(all["device"]["max_regions"], info.max_regions);
        }
        Err(error) => assert_eq!(all["device"]["why"], error.report()),
    }

    let cpus = all["machine"]["cpus"].as_array().expect("a list");
    assert!(
        !cpus.is_empty() && cpus.iter().all(Value::is_u64),
        "{cpus:?}"
    );
    assert!(
        all["machine"]["page_size"]
            .as_u64()
            .is_some_and(u64::is_power_of_two)
    );
    assert!(!all["policy"].as_array().expect("a list").is_empty());

    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call fills in the structure.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    assert_eq!(got, 0);
    match limit.rlim_cur {
        libc::RLIM_INFINITY => assert!(all["memlock_limit"].is_null()),
        bytes => assert_eq!(all["memlock_limit"], bytes),
    }
}

#[test]
fn json_lists_every_option_with_its_value() {
    let all = json(&[("LIBCOPY_SPIN", "17")]);
    let options = all["options"].as_array().expect("a list");
    assert_eq!(options.len(), libcopy::config::SETTINGS.len());
    for (told, setting) in options.iter().zip(libcopy::config::SETTINGS) {
        assert_eq!(told["name"], setting.name);
        assert_eq!(told["default"], setting.default);
        assert!(
            told["help"].as_str().is_some_and(|help| help.len() > 10),
            "{told}"
        );
    }
    let value = |name: &str| &options.iter().find(|o| o["name"] == name).expect(name)["value"];
    assert_eq!(*value("LIBCOPY_SPIN"), "17");
    assert!(value("LIBCOPY_TRANSPORT").is_null());
}

#[test]
fn text_names_the_same_transports_and_reasons() {
    let text = info(&[], &[]);
    for report in libcopy::transport::probe_machine() {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(report.kind.name()))
            .unwrap_or_else(|| panic!("no line for {}: {text}", report.kind));
        assert!(line.ends_with(&report.why), "{line}");
    }
    assert!(text.contains("RLIMIT_MEMLOCK"), "{text}");
}

#[test]
fn a_mistake_is_told_with_its_cause() {
    let output = output(Command::new(tool()).args(["run", "-n", "1", "/nonexistent/program"]));
    let text = text(&output.stderr);
    let cause = std::io::Error::from_raw_os_error(2).to_string();
    assert!(text.contains("rank 0"), "{text}");
    assert_eq!(text.matches(&cause).count(), 1, "{text}");
}

/// What `libcopy info` says where a program would refuse: what it prints, and the complaint.
fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> (String, String) {
    let output = output(&mut command(arguments, environment));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn shared_memory_is_made_and_what_cannot_be_used_is_refused() {
    let memory = json(&[])["shared_memory"].clone();
    assert_eq!(memory["usable"], true, "{memory}");
    assert!(
        memory["bytes"].as_u64().is_some_and(|bytes| bytes > 4096),
        "{memory}"
    );
    let (said, complaint) = refused(&["--json"], &[("LIBCOPY_SHM_DIR", "/nonexistent")]);
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(all["shared_memory"]["usable"], false);
    assert!(complaint.contains("/nonexistent"), "{complaint}");

    for (name, value) in [
        ("LIBCOPY_SPIN", "soon"),
        ("LIBCOPY_SHM_CHUNK", "12q"),
        ("LIBCOPY_REDUCTIONS", "some"),
        ("LIBCOPY_MPI_NODE_RANKS", "-1"),
        ("LIBCOPY_JOIN_TIMEOUT", "late"),
        ("LIBCOPY_TRANSPORT", "ether"),
        ("LIBCOPY_ASYNC", "perhaps"),
        ("LIBCOPY_KEY", "12"),
    ] {
        let (said, complaint) = refused(&[], &[(name, value)]);
        let expected = format!("a program would refuse: {name}={value:?} is not usable: expected ");
        assert!(complaint.contains(&expected), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        // Set variables are shown, whoever sets them.
        assert!(said.contains(&format!("  {name} ")), "{said}");
    }
    let all = json(&[("LIBCOPY_ASYNC", "1"), ("LIBCOPY_RDMA", "0")]);
    assert!(
        all["refused"].as_array().is_some_and(Vec::is_empty),
        "{all}"
    );
}

#[test]
fn users_see_their_variables_and_all_on_demand() {
    let count = |text: &str| {
        text.lines()
            .filter(|line| line.starts_with("  LIBCOPY_"))
            .count()
    };
    let (few, all) = (info(&[], &[]), info(&["--all"], &[]));
    assert_eq!(count(&all), libcopy::config::SETTINGS.len(), "{all}");
    assert!(count(&few) < count(&all) / 2, "{few}");
    assert!(
        few.contains("LIBCOPY_STATS") && !few.contains("LIBCOPY_MPI_PROTOCOL"),
        "{few}"
    );
    assert!(few.contains("--all shows them"), "{few}");
    let set = info(&[], &[("LIBCOPY_MPI_PROTOCOL", "get")]);
    assert_eq!(count(&set), count(&few) + 1, "{set}");
}
