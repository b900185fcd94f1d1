// SPDX-License-Identifier: MIT OR Apache-2.0

//! Progress bars on standard error, if a person looks at it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar of `length` steps; invisible unless standard error is a terminal.
///
/// It has no thread of its own, which would disturb what is measured.
pub fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    bar.set_draw_target(if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(5)
    } else {
        ProgressDrawTarget::hidden()
    });
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed} (left: {eta})  {wide_msg}")
    {
        // In any locale.
        bar.set_style(style.progress_chars("#>-"));
    }
    bar
}
