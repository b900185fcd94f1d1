// SPDX-License-Identifier: MIT OR Apache-2.0

//! Instructions of 16 bits: each stands for one of 32.

/// A register that is named by three bits: x8 to x15.
fn short(bits: u32, at: u32) -> u32 {
    8 + (bits >> at & 7)
}

/// Bits `high` to `low` of `bits`, moved to `to`.
fn take(bits: u32, high: u32, low: u32, to: u32) -> u32 {
    (bits >> low & ((1 << (high - low + 1)) - 1)) << to
}

/// Extends the sign of a number of `width` bits.
fn extend(value: u32, width: u32) -> u32 {
    ((value << (32 - width)) as i32 >> (32 - width)) as u32
}

fn i_type(immediate: u32, rs1: u32, funct3: u32, rd: u32, opcode: u32) -> u32 {
    immediate << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

fn r_type(funct7: u32, rs2: u32, rs1: u32, funct3: u32, rd: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | 0x33
}

fn store_word(immediate: u32, rs2: u32, rs1: u32) -> u32 {
    (immediate >> 5) << 25 | rs2 << 20 | rs1 << 15 | 2 << 12 | (immediate & 0x1f) << 7 | 0x23
}

fn jal(offset: u32, rd: u32) -> u32 {
    take(offset, 20, 20, 31)
        | take(offset, 10, 1, 21)
        | take(offset, 11, 11, 20)
        | take(offset, 19, 12, 12)
        | rd << 7
        | 0x6f
}

fn branch(offset: u32, rs1: u32, funct3: u32) -> u32 {
    take(offset, 12, 12, 31)
        | take(offset, 10, 5, 25)
        | rs1 << 15
        | funct3 << 12
        | take(offset, 4, 1, 8)
        | take(offset, 11, 11, 7)
        | 0x63
}

/// The instruction of 32 bits that 16 bits stand for; none if they are no instruction of RV32C
/// without floating point, or reserved (manual, chapter 16).
pub fn expand(half: u16) -> Option<u32> {
    let bits = u32::from(half);
    let funct3 = bits >> 13;
    let (rd, rs2) = (bits >> 7 & 0x1f, bits >> 2 & 0x1f);
    // Six bits of an immediate, as most instructions of quadrants 1 and 2 have them.
    let six = take(bits, 12, 12, 5) | rs2;
    let signed_six = extend(six, 6);
    let jump = extend(
        take(bits, 12, 12, 11)
            | take(bits, 11, 11, 4)
            | take(bits, 10, 9, 8)
            | take(bits, 8, 8, 10)
            | take(bits, 7, 7, 6)
            | take(bits, 6, 6, 7)
            | take(bits, 5, 3, 1)
            | take(bits, 2, 2, 5),
        12,
    );
    let near = extend(
        take(bits, 12, 12, 8)
            | take(bits, 11, 10, 3)
            | take(bits, 6, 5, 6)
            | take(bits, 4, 3, 1)
            | take(bits, 2, 2, 5),
        9,
    );
    let word = take(bits, 12, 10, 3) | take(bits, 6, 6, 2) | take(bits, 5, 5, 6);
    Some(match (bits & 3, funct3) {
        // c.addi4spn
        (0, 0) => {
            let immediate = take(bits, 12, 11, 4)
                | take(bits, 10, 7, 6)
                | take(bits, 6, 6, 2)
                | take(bits, 5, 5, 3);
            if immediate == 0 {
                return None;
            }
            i_type(immediate, 2, 0, short(bits, 2), 0x13)
        }
        // c.lw, c.sw
        (0, 2) => i_type(word, short(bits, 7), 2, short(bits, 2), 0x03),
        (0, 6) => store_word(word, short(bits, 2), short(bits, 7)),
        // c.addi, c.nop
        (1, 0) => i_type(signed_six, rd, 0, rd, 0x13),
        // c.jal, c.j
        (1, 1) => jal(jump, 1),
        (1, 5) => jal(jump, 0),
        // c.li
        (1, 2) => i_type(signed_six, 0, 0, rd, 0x13),
        // c.addi16sp
        (1, 3) if rd == 2 => {
            let immediate = take(bits, 12, 12, 9)
                | take(bits, 6, 6, 4)
                | take(bits, 5, 5, 6)
                | take(bits, 4, 3, 7)
                | take(bits, 2, 2, 5);
            if immediate == 0 {
                return None;
            }
            i_type(extend(immediate, 10), 2, 0, 2, 0x13)
        }
        // c.lui
        (1, 3) => {
            if six == 0 {
                return None;
            }
            signed_six << 12 | rd << 7 | 0x37
        }
        (1, 4) => {
            let rd = short(bits, 7);
            match (bits >> 10 & 3, bits >> 12 & 1, bits >> 5 & 3) {
                // c.srli, c.srai; a shift by 32 or more is not there in RV32
                (0 | 1, 1, _) => return None,
                (0, _, _) => i_type(six, rd, 5, rd, 0x13),
                (1, _, _) => i_type(0x400 | six, rd, 5, rd, 0x13),
                // c.andi
                (2, _, _) => i_type(signed_six, rd, 7, rd, 0x13),
                // c.sub, c.xor, c.or, c.and
                (_, 0, 0) => r_type(0x20, short(bits, 2), rd, 0, rd),
                (_, 0, 1) => r_type(0, short(bits, 2), rd, 4, rd),
                (_, 0, 2) => r_type(0, short(bits, 2), rd, 6, rd),
                (_, 0, _) => r_type(0, short(bits, 2), rd, 7, rd),
                _ => return None,
            }
        }
        // c.beqz, c.bnez
        (1, 6) => branch(near, short(bits, 7), 0),
        (1, 7) => branch(near, short(bits, 7), 1),
        // c.slli
        (2, 0) if six < 32 => i_type(six, rd, 1, rd, 0x13),
        // c.lwsp
        (2, 2) if rd != 0 => {
            let immediate = take(bits, 12, 12, 5) | take(bits, 6, 4, 2) | take(bits, 3, 2, 6);
            i_type(immediate, 2, 2, rd, 0x03)
        }
        (2, 4) => match (bits >> 12 & 1, rd, rs2) {
            (0, 0, 0) => return None,
            // c.jr, c.mv
            (0, _, 0) => i_type(0, rd, 0, 0, 0x67),
            (0, _, _) => r_type(0, rs2, 0, 0, rd),
            // c.ebreak, c.jalr, c.add
            (_, 0, 0) => 0x0010_0073,
            (_, _, 0) => i_type(0, rd, 0, 1, 0x67),
            _ => r_type(0, rs2, rd, 0, rd),
        },
        // c.swsp
        (2, 6) => store_word(take(bits, 12, 9, 2) | take(bits, 8, 7, 6), rs2, 2),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::instruction::{Alu, Condition, Instruction, Operation, Width};
    use super::*;

    /// The tables of the manual's section 16.8 as text: the 16 bits from the left, `d` rd or
    /// rd/rs1, `s` rs2, `D`, `S` the registers of three bits, and where each bit of the immediate
    /// stands. A line is tried before those below it.
    const TABLE: &[(&str, &str, &str)] = &[
        ("addi4spn", "000 iiiiiiii DDD 00", "5 4 9 8 7 6 2 3"),
        ("lw", "010 iii SSS ii DDD 00", "5 4 3 2 6"),
        ("sw", "110 iii SSS ii DDD 00", "5 4 3 2 6"),
        ("addi", "000 i ddddd iiiii 01", "5 4 3 2 1 0"),
        ("jal", "001 iiiiiiiiiii 01", "11 4 9 8 10 6 7 3 2 1 5"),
        ("li", "010 i ddddd iiiii 01", "5 4 3 2 1 0"),
        ("addi16sp", "011 i 00010 iiiii 01", "9 4 6 8 7 5"),
        ("lui", "011 i ddddd iiiii 01", "17 16 15 14 13 12"),
        ("srli", "100 0 00 SSS iiiii 01", "4 3 2 1 0"),
        ("srai", "100 0 01 SSS iiiii 01", "4 3 2 1 0"),
        ("andi", "100 i 10 SSS iiiii 01", "5 4 3 2 1 0"),
        ("sub", "100 0 11 SSS 00 DDD 01", ""),
        ("xor", "100 0 11 SSS 01 DDD 01", ""),
        ("or", "100 0 11 SSS 10 DDD 01", ""),
        ("and", "100 0 11 SSS 11 DDD 01", ""),
        ("j", "101 iiiiiiiiiii 01", "11 4 9 8 10 6 7 3 2 1 5"),
        ("beqz", "110 iii SSS iiiii 01", "8 4 3 7 6 2 1 5"),
        ("bnez", "111 iii SSS iiiii 01", "8 4 3 7 6 2 1 5"),
        ("slli", "000 0 ddddd iiiii 10", "4 3 2 1 0"),
        ("lwsp", "010 i ddddd iiiii 10", "5 4 3 2 7 6"),
        ("illegal", "100 0 00000 00000 10", ""),
        ("jr", "100 0 ddddd 00000 10", ""),
        ("mv", "100 0 ddddd sssss 10", ""),
        ("ebreak", "100 1 00000 00000 10", ""),
        ("jalr", "100 1 ddddd 00000 10", ""),
        ("add", "100 1 ddddd sssss 10", ""),
        ("swsp", "110 iiiiii sssss 10", "5 4 3 2 7 6"),
    ];

    /// What the manual's table says of 16 bits.
    fn listed(half: u16) -> Option<Instruction> {
        let (name, pattern, places) = TABLE.iter().find(|(_, pattern, _)| {
            let letters: Vec<char> = pattern.chars().filter(|c| *c != ' ').collect();
            assert_eq!(letters.len(), 16, "{pattern}");
            letters.iter().enumerate().all(|(i, letter)| {
                let bit = half >> (15 - i) & 1;
                match letter {
                    '0' => bit == 0,
                    '1' => bit == 1,
                    _ => true,
                }
            })
        })?;
        let (mut d, mut s, mut short_d, mut short_s, mut immediate) = (0, 0, 0, 0, 0i32);
        let mut place = places.split_whitespace().map(|p| p.parse::<u32>().unwrap());
        let mut highest = 0;
        for (i, letter) in pattern.chars().filter(|c| *c != ' ').enumerate() {
            let bit = u8::from(half >> (15 - i) & 1 == 1);
            match letter {
                'd' => d = 2 * d + bit,
                's' => s = 2 * s + bit,
                'D' => short_d = 2 * short_d + bit,
                'S' => short_s = 2 * short_s + bit,
                'i' => {
                    let place = place.next().unwrap();
                    highest = highest.max(place);
                    immediate |= i32::from(bit) << place;
                }
                _ => {}
            }
        }
        assert_eq!(place.next(), None, "{name}");
        let (short_d, short_s) = (short_d + 8, short_s + 8);
        let sign = 1 << highest;
        let signed = if immediate & sign != 0 {
            immediate - 2 * sign
        } else {
            immediate
        };
        let of = |operation, rd, rs1, rs2, immediate| {
            Some(Instruction {
                operation,
                rd,
                rs1,
                rs2,
                immediate,
            })
        };
        let add = Operation::AluImmediate(Alu::Add);
        let reg = |op| of(Operation::Alu(op), short_s, short_s, short_d, 0);
        match *name {
            "addi4spn" if immediate != 0 => of(add, short_d, 2, 0, immediate),
            "lw" => of(Operation::Load(Width::Word), short_d, short_s, 0, immediate),
            "sw" => of(
                Operation::Store(Width::Word),
                0,
                short_s,
                short_d,
                immediate,
            ),
            "addi" => of(add, d, d, 0, signed),
            "jal" => of(Operation::Jal, 1, 0, 0, signed),
            "li" => of(add, d, 0, 0, signed),
            "addi16sp" if immediate != 0 => of(add, 2, 2, 0, signed),
            "lui" if immediate != 0 => of(Operation::Lui, d, 0, 0, signed),
            "srli" => of(
                Operation::AluImmediate(Alu::Srl),
                short_s,
                short_s,
                0,
                immediate,
            ),
            "srai" => of(
                Operation::AluImmediate(Alu::Sra),
                short_s,
                short_s,
                0,
                immediate,
            ),
            "andi" => of(
                Operation::AluImmediate(Alu::And),
                short_s,
                short_s,
                0,
                signed,
            ),
            "sub" => reg(Alu::Sub),
            "xor" => reg(Alu::Xor),
            "or" => reg(Alu::Or),
            "and" => reg(Alu::And),
            "j" => of(Operation::Jal, 0, 0, 0, signed),
            "beqz" => of(Operation::Branch(Condition::Eq), 0, short_s, 0, signed),
            "bnez" => of(Operation::Branch(Condition::Ne), 0, short_s, 0, signed),
            "slli" => of(Operation::AluImmediate(Alu::Sll), d, d, 0, immediate),
            "lwsp" if d != 0 => of(Operation::Load(Width::Word), d, 2, 0, immediate),
            "jr" => of(Operation::Jalr, 0, d, 0, 0),
            "mv" => of(Operation::Alu(Alu::Add), d, 0, s, 0),
            "ebreak" => of(Operation::Ebreak, 0, 0, 0, 0),
            "jalr" => of(Operation::Jalr, 1, d, 0, 0),
            "add" => of(Operation::Alu(Alu::Add), d, d, s, 0),
            "swsp" => of(Operation::Store(Width::Word), 0, 2, s, immediate),
            _ => None,
        }
    }

    #[test]
    fn every_half_word_is_what_the_table_of_the_manual_says() {
        let mut legal = 0;
        for half in 0..=u16::MAX {
            if half & 3 == 3 {
                continue;
            }
            let ours = expand(half).map(|bits| {
                Instruction::decode(bits).unwrap_or_else(|| panic!("{half:#06x}: {bits:#010x}"))
            });
            assert_eq!(ours, listed(half), "{half:#06x}");
            legal += u32::from(ours.is_some());
        }
        // 11 bits each, without zero immediates and the like: 2,040 + 2 * 2,048 in quadrant 0; 6 *
        // 2,048 + 2,016 + 1,280 in quadrant 1; 1,024 + 1,984 + 2,047 + 2,048 in quadrant 2.
        assert_eq!(legal, 28_823);
        assert_eq!(expand(0), None, "all zeros are illegal by definition");
    }
}
