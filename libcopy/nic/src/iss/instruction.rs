// SPDX-License-Identifier: MIT OR Apache-2.0

//! Instructions of 32 bits, decoded.

/// What an instruction computes with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Alu {
    Add,
    Sub,
    Sll,
    Slt,
    Sltu,
    Xor,
    Srl,
    Sra,
    Or,
    And,
}

/// The M extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum MulDiv {
    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
}

/// When a branch is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Condition {
    Eq,
    Ne,
    Lt,
    Ge,
    Ltu,
    Geu,
}

/// How much a load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// A byte; a load extends its sign.
    Byte,
    /// Two bytes; a load extends their sign.
    Half,
    /// Four bytes.
    Word,
    /// A byte, extended by zeros.
    ByteUnsigned,
    /// Two bytes, extended by zeros.
    HalfUnsigned,
}

impl Width {
    /// Bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Width::Byte | Width::ByteUnsigned => 1,
            Width::Half | Width::HalfUnsigned => 2,
            Width::Word => 4,
        }
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Operation {
    Lui,
    Auipc,
    Jal,
    Jalr,
    Branch(Condition),
    Load(Width),
    Store(Width),
    AluImmediate(Alu),
    Alu(Alu),
    MulDiv(MulDiv),
    Fence,
    Ecall,
    Ebreak,
}

/// A decoded instruction. Fields that its format lacks are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub operation: Operation,
    /// The destination register.
    pub rd: u8,
    /// The first source.
    pub rs1: u8,
    /// The second source.
    pub rs2: u8,
    /// The immediate, its sign extended; of shifts the amount.
    pub immediate: i32,
}

fn alu(funct3: u32) -> Alu {
    match funct3 {
        0 => Alu::Add,
        1 => Alu::Sll,
        2 => Alu::Slt,
        3 => Alu::Sltu,
        4 => Alu::Xor,
        5 => Alu::Srl,
        6 => Alu::Or,
        _ => Alu::And,
    }
}

fn mul_div(funct3: u32) -> MulDiv {
    match funct3 {
        0 => MulDiv::Mul,
        1 => MulDiv::Mulh,
        2 => MulDiv::Mulhsu,
        3 => MulDiv::Mulhu,
        4 => MulDiv::Div,
        5 => MulDiv::Divu,
        6 => MulDiv::Rem,
        _ => MulDiv::Remu,
    }
}

impl Instruction {
    /// Decodes 32 bits; none if they are no instruction of RV32IM (manual, chapter 24).
    pub fn decode(bits: u32) -> Option<Instruction> {
        let signed = bits as i32;
        let field = |at: u32| (bits >> at & 0x1f) as u8;
        let (funct3, funct7) = (bits >> 12 & 7, bits >> 25);
        let (rd, rs1, rs2) = (field(7), field(15), field(20));
        let imm_i = signed >> 20;
        // Bits `low` and above of the instruction, `width` of them, moved to `to`.
        let part =
            |low: u32, width: u32, to: u32| ((bits >> low & ((1 << width) - 1)) << to) as i32;
        let sign = signed >> 31;
        let imm_s = (signed >> 25 << 5) | i32::from(rd);
        let imm_b = (sign << 12) | part(7, 1, 11) | part(25, 6, 5) | part(8, 4, 1);
        let imm_j = (sign << 20) | part(12, 8, 12) | part(20, 1, 11) | part(21, 10, 1);
        let imm_u = (bits & 0xffff_f000) as i32;
        let made = |operation, rd, rs1, rs2, immediate| {
            Some(Instruction {
                operation,
                rd,
                rs1,
                rs2,
                immediate,
            })
        };
        match bits & 0x7f {
            0x37 => made(Operation::Lui, rd, 0, 0, imm_u),
            0x17 => made(Operation::Auipc, rd, 0, 0, imm_u),
            0x6f => made(Operation::Jal, rd, 0, 0, imm_j),
            0x67 if funct3 == 0 => made(Operation::Jalr, rd, rs1, 0, imm_i),
            0x63 => {
                let condition = match funct3 {
                    0 => Condition::Eq,
                    1 => Condition::Ne,
                    4 => Condition::Lt,
                    5 => Condition::Ge,
                    6 => Condition::Ltu,
                    7 => Condition::Geu,
                    _ => return None,
                };
                made(Operation::Branch(condition), 0, rs1, rs2, imm_b)
            }
            0x03 => {
                let width = match funct3 {
                    0 => Width::Byte,
                    1 => Width::Half,
                    2 => Width::Word,
                    4 => Width::ByteUnsigned,
                    5 => Width::HalfUnsigned,
                    _ => return None,
                };
                made(Operation::Load(width), rd, rs1, 0, imm_i)
            }
            0x23 => {
                let width = match funct3 {
                    0 => Width::Byte,
                    1 => Width::Half,
                    2 => Width::Word,
                    _ => return None,
                };
                made(Operation::Store(width), 0, rs1, rs2, imm_s)
            }
            0x13 => {
                let (op, immediate) = match (funct3, funct7) {
                    (1, 0) | (5, 0) => (alu(funct3), i32::from(rs2)),
                    (5, 0x20) => (Alu::Sra, i32::from(rs2)),
                    (1 | 5, _) => return None,
                    _ => (alu(funct3), imm_i),
                };
                made(Operation::AluImmediate(op), rd, rs1, 0, immediate)
            }
            0x33 => {
                let operation = match (funct7, funct3) {
                    (0, _) => Operation::Alu(alu(funct3)),
                    (0x20, 0) => Operation::Alu(Alu::Sub),
                    (0x20, 5) => Operation::Alu(Alu::Sra),
                    (1, _) => Operation::MulDiv(mul_div(funct3)),
                    _ => return None,
                };
                made(operation, rd, rs1, rs2, 0)
            }
            // One core without caches: order needs nothing.
            0x0f if funct3 <= 1 => made(Operation::Fence, 0, 0, 0, 0),
            0x73 if bits == 0x0000_0073 => made(Operation::Ecall, 0, 0, 0, 0),
            0x73 if bits == 0x0010_0073 => made(Operation::Ebreak, 0, 0, 0, 0),
            _ => None,
        }
    }

    /// Whether it reads `register`, for load-use stalls.
    pub fn reads(&self, register: u8) -> bool {
        let second = matches!(
            self.operation,
            Operation::Branch(_) | Operation::Store(_) | Operation::Alu(_) | Operation::MulDiv(_)
        );
        let first = second
            || matches!(
                self.operation,
                Operation::Jalr | Operation::Load(_) | Operation::AluImmediate(_)
            );
        register != 0 && (first && self.rs1 == register || second && self.rs2 == register)
    }
}
