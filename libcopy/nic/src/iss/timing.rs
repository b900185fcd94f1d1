// SPDX-License-Identifier: MIT OR Apache-2.0

//! How many cycles an instruction takes.

/// Cycles of instructions; see [`Timing::CV32E40P`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A conditional branch that is taken. Not taken it takes one.
    pub taken_branch: u32,
    /// `jal` and `jalr`.
    pub jump: u32,
    /// Added if an instruction uses what the load before it has loaded.
    pub load_use: u32,
    /// Added to an access that crosses a word.
    pub misaligned: u32,
    /// `mul`.
    pub multiply: u32,
    /// `mulh`, `mulhsu`, `mulhu`.
    pub multiply_high: u32,
    /// The shortest division; leading zeros of the divisor are added.
    pub divide: u32,
}

impl Timing {
    /// The four-stage in-order core CV32E40P, formerly RI5CY, the core of PULP clusters (OpenHW
    /// CV32E40P user manual, "Pipeline details": taken branch 3, jump 2, mulh 5, division 3 to 35,
    /// load-use 1, misaligned access 1).
    pub const CV32E40P: Timing = Timing {
        taken_branch: 3,
        jump: 2,
        load_use: 1,
        misaligned: 1,
        multiply: 1,
        multiply_high: 5,
        divide: 3,
    };

    /// Cycles of a division by `divisor`: the divider first shifts the divisor to the left, a bit
    /// per cycle.
    pub fn division(&self, divisor: u32, signed: bool) -> u32 {
        let magnitude = if signed {
            (divisor as i32).unsigned_abs()
        } else {
            divisor
        };
        self.divide + magnitude.leading_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_division_takes_3_to_35_cycles() {
        let timing = Timing::CV32E40P;
        assert_eq!(timing.division(0x8000_0000, false), 3);
        assert_eq!(timing.division(0x8000_0000, true), 3);
        assert_eq!(timing.division(u32::MAX, false), 3);
        assert_eq!(timing.division(u32::MAX, true), 34);
        assert_eq!(timing.division(1, false), 34);
        assert_eq!(timing.division(0, false), 35);
    }
}
