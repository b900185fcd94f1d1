// SPDX-License-Identifier: MIT OR Apache-2.0

//! The simulator, instruction by instruction. The words are encoded here by hand-written functions
//! from the formats of the manual (chapter 24), not by the simulator; what is expected follows the
//! manual's text.

use libcopy_nic::iss::{
    Access, Counts, Device, Hart, Memory, NoDevice, RETURN, Region, Timing, Trap,
};

const CODE: u32 = 0x1000;
const DATA: u32 = 0x8000;
const ROM: u32 = 0xa000;
const WINDOW: u32 = 0x4000_0000;
const STACK: u32 = DATA + 0x400;

const A0: u32 = 10;
const A1: u32 = 11;
const A2: u32 = 12;
const RET: u32 = 0x0000_8067;

fn r(funct7: u32, rs2: u32, rs1: u32, funct3: u32, rd: u32) -> u32 {
    (funct7 << 25) + (rs2 << 20) + (rs1 << 15) + (funct3 << 12) + (rd << 7) + 0b011_0011
}

fn i(opcode: u32, immediate: i32, rs1: u32, funct3: u32, rd: u32) -> u32 {
    assert!((-2048..2048).contains(&immediate));
    ((immediate as u32 & 0xfff) << 20) + (rs1 << 15) + (funct3 << 12) + (rd << 7) + opcode
}

fn addi(rd: u32, rs1: u32, immediate: i32) -> u32 {
    i(0b001_0011, immediate, rs1, 0, rd)
}

fn load(funct3: u32, rd: u32, rs1: u32, immediate: i32) -> u32 {
    i(0b000_0011, immediate, rs1, funct3, rd)
}

fn store(funct3: u32, rs2: u32, rs1: u32, immediate: i32) -> u32 {
    let bits = immediate as u32 & 0xfff;
    ((bits >> 5) << 25)
        + (rs2 << 20)
        + (rs1 << 15)
        + (funct3 << 12)
        + ((bits & 31) << 7)
        + 0b010_0011
}

fn branch(funct3: u32, rs1: u32, rs2: u32, offset: i32) -> u32 {
    let bits = offset as u32;
    ((bits >> 12 & 1) << 31)
        + ((bits >> 5 & 63) << 25)
        + (rs2 << 20)
        + (rs1 << 15)
        + (funct3 << 12)
        + ((bits >> 1 & 15) << 8)
        + ((bits >> 11 & 1) << 7)
        + 0b110_0011
}

fn jal(rd: u32, offset: i32) -> u32 {
    let bits = offset as u32;
    ((bits >> 20 & 1) << 31)
        + ((bits >> 1 & 0x3ff) << 21)
        + ((bits >> 11 & 1) << 20)
        + ((bits >> 12 & 0xff) << 12)
        + (rd << 7)
        + 0b110_1111
}

fn lui(rd: u32, upper: u32) -> u32 {
    (upper << 12) + (rd << 7) + 0b011_0111
}

fn hart_of(code: Vec<u8>) -> Hart<NoDevice> {
    let rom: Vec<u8> = (0..64u8).map(|b| 0x70u8.wrapping_add(3 * b)).collect();
    let mut memory = Memory::new(vec![
        Region::code(CODE, code),
        Region::data(DATA, vec![0; 0x400]),
        Region::data(ROM, rom).read_only(),
    ]);
    memory.region_mut(2).set_wait(4);
    Hart::new(memory, NoDevice, WINDOW, 16, Timing::CV32E40P)
}

fn hart(words: &[u32]) -> Hart<NoDevice> {
    hart_of(words.iter().flat_map(|w| w.to_le_bytes()).collect())
}

/// Runs words with arguments in a0 to a2.
fn run(words: &[u32], arguments: &[u32]) -> Result<(u32, Counts), Trap> {
    hart(words).call(CODE, arguments, STACK, 1000)
}

fn result(words: &[u32], arguments: &[u32]) -> u32 {
    run(words, arguments).unwrap().0
}

/// The cycles of what stands before the final jump, which takes two.
fn cycles(words: &[u32], arguments: &[u32]) -> u64 {
    let mut all = words.to_vec();
    all.push(RET);
    run(&all, arguments).unwrap().1.cycles - 2
}

#[test]
fn immediates() {
    let of = |funct3, immediate, value| {
        result(&[i(0b001_0011, immediate, A0, funct3, A0), RET], &[value])
    };
    assert_eq!(of(0, -1, 0), u32::MAX);
    assert_eq!(of(0, 2047, 1), 2048);
    assert_eq!(of(2, -5, -6i32 as u32), 1, "slti");
    assert_eq!(of(2, -5, -5i32 as u32), 0);
    assert_eq!(
        of(3, -1, 7),
        1,
        "sltiu extends the sign, then compares unsigned"
    );
    assert_eq!(of(3, 1, 0), 1, "seqz");
    assert_eq!(of(4, -1, 0x1234_5678), 0xedcb_a987, "xori: not");
    assert_eq!(of(6, -2048, 5), 0xffff_f805, "ori");
    assert_eq!(of(7, 0xff, 0x1234_5678), 0x78, "andi");
    assert_eq!(of(1, 31, 3), 0x8000_0000, "slli");
    assert_eq!(of(5, 4, 0x8000_0010), 0x0800_0001, "srli");
    assert_eq!(of(5, 4 + 0x400, 0x8000_0010), 0xf800_0001, "srai");
}

#[test]
fn upper_immediates() {
    assert_eq!(result(&[lui(A0, 0xfffff), RET], &[]), 0xffff_f000);
    // auipc adds to the address of the instruction itself.
    let auipc = (1 << 12) + (A0 << 7) + 0b001_0111;
    assert_eq!(result(&[addi(0, 0, 0), auipc, RET], &[]), CODE + 4 + 0x1000);
}

#[test]
fn registers() {
    let of = |funct7, funct3, a, b| result(&[r(funct7, A1, A0, funct3, A0), RET], &[a, b]);
    assert_eq!(of(0, 0, u32::MAX, 2), 1, "add");
    assert_eq!(of(0x20, 0, 1, 2), u32::MAX, "sub");
    assert_eq!(of(0, 1, 1, 33), 2, "sll: the low five bits count");
    assert_eq!(of(0, 2, 0x8000_0000, 0), 1, "slt");
    assert_eq!(of(0, 3, 0x8000_0000, 0), 0, "sltu");
    assert_eq!(of(0, 4, 0b1100, 0b1010), 0b0110, "xor");
    assert_eq!(of(0, 5, 0x8000_0000, 31), 1, "srl");
    assert_eq!(of(0x20, 5, 0x8000_0000, 31), u32::MAX, "sra");
    assert_eq!(of(0, 6, 0b1100, 0b1010), 0b1110, "or");
    assert_eq!(of(0, 7, 0b1100, 0b1010), 0b1000, "and");
    // x0 stays 0 whatever is written to it.
    assert_eq!(result(&[addi(0, A0, 5), addi(A0, 0, 0), RET], &[9]), 0);
}

#[test]
fn multiplication_and_division() {
    let of = |funct3, a: u32, b: u32| result(&[r(1, A1, A0, funct3, A0), RET], &[a, b]);
    let minus = |n: i32| (-n) as u32;
    assert_eq!(of(0, minus(7), 6), minus(42), "mul");
    assert_eq!(of(1, minus(1), minus(1)), 0, "mulh");
    assert_eq!(of(2, minus(1), u32::MAX), minus(1), "mulhsu");
    assert_eq!(of(3, u32::MAX, u32::MAX), 0xffff_fffe, "mulhu");
    assert_eq!(of(4, minus(7), 2), minus(3), "div rounds to zero");
    assert_eq!(
        of(6, minus(7), 2),
        minus(1),
        "rem has the sign of the dividend"
    );
    assert_eq!(of(5, minus(7), 2), 0x7fff_fffc, "divu");
    assert_eq!(of(7, minus(7), 2), 1, "remu");
    // Table 7.1: division by zero, and overflow.
    assert_eq!(of(4, 9, 0), u32::MAX);
    assert_eq!(of(5, 9, 0), u32::MAX);
    assert_eq!(of(6, minus(9), 0), minus(9));
    assert_eq!(of(7, 9, 0), 9);
    assert_eq!(of(4, 0x8000_0000, u32::MAX), 0x8000_0000);
    assert_eq!(of(6, 0x8000_0000, u32::MAX), 0);
}

#[test]
fn loads_and_stores() {
    // The ROM has 0x70, 0x73, ..., so bytes from 6 on are negative.
    let of = |funct3, immediate| result(&[load(funct3, A0, A0, immediate), RET], &[ROM + 8]);
    assert_eq!(of(0, 0), 0xffff_ff88, "lb");
    assert_eq!(of(0, -8), 0x70);
    assert_eq!(of(4, 0), 0x88, "lbu");
    assert_eq!(of(1, 0), 0xffff_8b88, "lh");
    assert_eq!(of(5, 0), 0x8b88, "lhu");
    assert_eq!(of(2, 0), 0x918e_8b88, "lw");
    assert_eq!(of(2, -7), 0x7c79_7673, "misaligned");
    for (funct3, expected) in [(0, 0x0000_0044), (1, 0x0000_3344), (2, 0x1122_3344)] {
        let words = [store(funct3, A1, A0, -4), load(2, A0, A0, -4), RET];
        assert_eq!(result(&words, &[DATA + 8, 0x1122_3344]), expected);
    }
}

#[test]
fn branches_and_jumps() {
    // Returns 1 if the branch is taken, 0 if not.
    let taken = |funct3, a, b| {
        result(
            &[
                branch(funct3, A0, A1, 12),
                addi(A0, 0, 0),
                RET,
                addi(A0, 0, 1),
                RET,
            ],
            &[a, b],
        ) == 1
    };
    let minus = -1i32 as u32;
    assert!(taken(0, 5, 5) && !taken(0, 5, 6), "beq");
    assert!(taken(1, 5, 6) && !taken(1, 5, 5), "bne");
    assert!(
        taken(4, minus, 0) && !taken(4, 0, minus) && !taken(4, 3, 3),
        "blt"
    );
    assert!(
        taken(5, 0, minus) && !taken(5, minus, 0) && taken(5, 3, 3),
        "bge"
    );
    assert!(
        taken(6, 0, minus) && !taken(6, minus, 0) && !taken(6, 3, 3),
        "bltu"
    );
    assert!(
        taken(7, minus, 0) && !taken(7, 0, minus) && taken(7, 3, 3),
        "bgeu"
    );
    // A loop: 10 + 9 + ... + 1.
    let sum = [
        addi(A1, 0, 0),
        r(0, A0, A1, 0, A1),
        addi(A0, A0, -1),
        branch(1, A0, 0, -8),
        addi(A0, A1, 0),
        RET,
    ];
    assert_eq!(result(&sum, &[10]), 55);
    // jal and jalr leave the address behind them; jalr clears the lowest bit.
    let call = [
        addi(A2, 1, 0),
        jal(1, 12),
        addi(A0, A0, 1),
        i(0b110_0111, 0, A2, 0, 0),
        addi(A0, 1, 0),
        i(0b110_0111, 1, 1, 0, 0),
    ];
    assert_eq!(result(&call, &[0]), CODE + 8 + 1);
}

#[test]
fn compressed_instructions_run_between_the_others() {
    // c.li a0, 5; addi a0, a0, 100 (crosses a word); c.slli a0, 1; c.jr ra
    let mut code = vec![0x15, 0x45];
    code.extend(addi(A0, A0, 100).to_le_bytes());
    code.extend([0x06, 0x05, 0x82, 0x80]);
    let (value, counts) = hart_of(code).call(CODE, &[], STACK, 10).unwrap();
    assert_eq!(value, 210);
    assert_eq!(
        counts,
        Counts {
            instructions: 4,
            cycles: 5
        }
    );
}

#[test]
fn what_takes_how_long() {
    assert_eq!(cycles(&[addi(A0, A0, 1)], &[1]), 1);
    assert_eq!(cycles(&[r(1, A1, A0, 0, A0)], &[1, 2]), 1, "mul");
    assert_eq!(cycles(&[r(1, A1, A0, 1, A0)], &[1, 2]), 5, "mulh");
    assert_eq!(cycles(&[r(1, A1, A0, 5, A0)], &[9, 2]), 3 + 30, "divu");
    assert_eq!(cycles(&[r(1, A1, A0, 4, A0)], &[9, 0]), 35, "div by zero");
    assert_eq!(cycles(&[branch(0, A0, A1, 4)], &[1, 2]), 1, "not taken");
    assert_eq!(cycles(&[branch(1, A0, A1, 4)], &[1, 2]), 3, "taken");
    assert_eq!(cycles(&[jal(0, 4)], &[]), 2);
    let word = |offset| load(2, A0, A1, offset);
    assert_eq!(cycles(&[word(0)], &[0, DATA]), 1);
    assert_eq!(cycles(&[word(1)], &[0, DATA]), 2, "misaligned");
    assert_eq!(cycles(&[word(0)], &[0, ROM]), 5, "a memory that waits");
    assert_eq!(
        cycles(&[load(1, A0, A1, 2)], &[0, DATA]),
        1,
        "within a word"
    );
    // Used at once: one more; with an instruction in between: none. The base of a store is a use as
    // well.
    let other = addi(A2, A2, 1);
    assert_eq!(cycles(&[word(0), addi(A0, A0, 1)], &[0, DATA]), 3);
    assert_eq!(cycles(&[word(0), other, addi(A0, A0, 1)], &[0, DATA]), 3);
    assert_eq!(cycles(&[word(0), addi(A2, A2, 1)], &[0, DATA]), 2);
    assert_eq!(cycles(&[word(0), store(2, A0, A1, 0)], &[0, DATA]), 3);
    // lui has bits where others have rs1: they are no use.
    assert_eq!(cycles(&[word(0), lui(A2, A0 << 3)], &[0, DATA]), 2);
    assert_eq!(cycles(&[0x0000_000f], &[]), 1, "fence");
}

#[test]
fn what_a_core_traps_on_is_an_error() {
    let pc = CODE;
    assert_eq!(run(&[0], &[]), Err(Trap::Illegal { pc, bits: 0 }));
    assert_eq!(
        run(&[u32::MAX], &[]),
        Err(Trap::Illegal { pc, bits: u32::MAX })
    );
    for bits in [
        r(2, 1, 1, 0, 1),
        r(0x20, 1, 1, 1, 1),
        i(0b001_0011, 0x200, 1, 1, 1),
        load(3, 1, 1, 0),
        load(6, 1, 1, 0),
        store(3, 1, 1, 0),
        branch(2, 1, 1, 0),
        i(0b110_0111, 0, 1, 1, 1),
        // csrrw: there are no control registers
        i(0b111_0011, 0, 1, 1, 1),
    ] {
        assert_eq!(
            run(&[bits], &[]),
            Err(Trap::Illegal { pc, bits }),
            "{bits:#x}"
        );
    }
    assert_eq!(run(&[0x0000_0073], &[]), Err(Trap::EnvironmentCall { pc }));
    assert_eq!(run(&[0x0010_0073], &[]), Err(Trap::Breakpoint { pc }));
    let memory = |access, address, bytes| {
        Err(Trap::Memory {
            pc,
            access,
            address,
            bytes,
        })
    };
    let lw = load(2, A0, A0, 0);
    assert_eq!(run(&[lw], &[0]), memory(Access::Load, 0, 4));
    assert_eq!(
        run(&[lw], &[DATA + 0x3fd]),
        memory(Access::Load, DATA + 0x3fd, 4),
        "over the end"
    );
    assert_eq!(run(&[lw], &[u32::MAX]), memory(Access::Load, u32::MAX, 4));
    let sw = store(2, A0, A0, 0);
    assert_eq!(
        run(&[sw], &[ROM]),
        memory(Access::Store, ROM, 4),
        "read only"
    );
    assert_eq!(run(&[sw], &[CODE]), memory(Access::Store, CODE, 4), "code");
    assert_eq!(
        run(&[sw], &[WINDOW]),
        memory(Access::Store, WINDOW, 4),
        "no device"
    );
    assert_eq!(
        run(&[jal(0, 0x800)], &[]),
        Err(Trap::Memory {
            pc: CODE + 0x800,
            access: Access::Fetch,
            address: CODE + 0x800,
            bytes: 2,
        })
    );
    assert_eq!(
        run(&[jal(0, 0)], &[]),
        Err(Trap::Budget {
            pc,
            instructions: 1000
        })
    );
    assert_ne!(RETURN % 4, 0, "no instruction of 32 bits can stand there");
}

/// Remembers what was stored.
#[derive(Default)]
struct Log(Vec<(u32, u32)>);

impl Device for Log {
    fn store(&mut self, offset: u32, value: u32, _: u64) -> bool {
        self.0.push((offset, value));
        offset < 8
    }

    fn load(&mut self, offset: u32) -> Option<u32> {
        (offset == 4).then_some(77)
    }
}

#[test]
fn the_window_is_the_device() {
    let code: Vec<u8> = [store(2, A1, A0, 4), load(2, A0, A0, 4), RET]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let memory = Memory::new(vec![Region::code(CODE, code)]);
    let mut hart = Hart::new(memory, Log::default(), WINDOW, 16, Timing::CV32E40P);
    assert_eq!(hart.call(CODE, &[WINDOW, 5], 0, 10).unwrap().0, 77);
    assert_eq!(hart.device.0, [(4, 5)]);
    let refused = hart.call(CODE, &[WINDOW + 8, 5], 0, 10);
    assert!(matches!(
        refused,
        Err(Trap::Memory {
            access: Access::Store,
            ..
        })
    ));
    assert_eq!(hart.device.0.last(), Some(&(12, 5)));
    // Registers are words: parts of them and misaligned ones are not there, and the device does not
    // hear of it.
    let refused = hart.call(CODE, &[WINDOW + 1, 5], 0, 10);
    assert!(refused.is_err());
    assert_eq!(hart.device.0.len(), 2);
}

#[test]
#[should_panic(expected = "overlap")]
fn regions_do_not_overlap() {
    Memory::new(vec![
        Region::data(0x100, vec![0; 16]),
        Region::data(0x10f, vec![0; 16]),
    ]);
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Numbers near the ends of the ranges as often as others.
    fn operand(&mut self) -> u32 {
        let edges = [
            0,
            1,
            2,
            31,
            32,
            0x7fff_ffff,
            0x8000_0000,
            0x8000_0001,
            u32::MAX,
        ];
        match self.next() % 4 {
            0 => edges[self.next() as usize % edges.len()],
            1 => self.next() as u32 >> (self.next() % 32),
            _ => self.next() as u32,
        }
    }
}

/// The oracle: what the manual says, in integers without bounds. A result is taken modulo 2^32 at
/// the end.
fn oracle(funct7: u32, funct3: u32, a: u32, b: u32) -> u32 {
    let modulus = 1i128 << 32;
    let unsigned = i128::from;
    let signed = |x: u32| {
        let x = i128::from(x);
        if x >= 1 << 31 { x - modulus } else { x }
    };
    let power = 1i128 << (b % 32);
    let truth = |yes: bool| i128::from(yes);
    // The bits one by one, for the logical operations.
    let bitwise = |op: fn(u32, u32) -> u32| {
        (0..32)
            .map(|i| i128::from(op(a >> i & 1, b >> i & 1)) << i)
            .sum::<i128>()
    };
    let value = match (funct7, funct3) {
        (0, 0) => unsigned(a) + unsigned(b),
        (0x20, 0) => unsigned(a) - unsigned(b),
        (0, 1) => unsigned(a) * power,
        (0, 2) => truth(signed(a) < signed(b)),
        (0, 3) => truth(unsigned(a) < unsigned(b)),
        (0, 4) => bitwise(|x, y| u32::from(x != y)),
        (0, 5) => unsigned(a).div_euclid(power),
        (0x20, 5) => signed(a).div_euclid(power),
        (0, 6) => bitwise(|x, y| u32::from(x + y > 0)),
        (0, 7) => bitwise(|x, y| u32::from(x + y == 2)),
        (1, 0) => unsigned(a) * unsigned(b),
        (1, 1) => (signed(a) * signed(b)).div_euclid(modulus),
        (1, 2) => (signed(a) * unsigned(b)).div_euclid(modulus),
        (1, 3) => (unsigned(a) * unsigned(b)).div_euclid(modulus),
        (1, 4 | 5) if b == 0 => -1,
        (1, 6 | 7) if b == 0 => unsigned(a),
        (1, 4) => signed(a) / signed(b),
        (1, 5) => unsigned(a) / unsigned(b),
        (1, 6) => signed(a) - signed(a) / signed(b) * signed(b),
        (1, 7) => unsigned(a) - unsigned(a) / unsigned(b) * unsigned(b),
        _ => unreachable!(),
    };
    value.rem_euclid(modulus) as u32
}

#[test]
fn random_operands_give_what_the_oracle_says() {
    let mut random = Random(21);
    let operations: Vec<(u32, u32)> = (0..8)
        .map(|funct3| (0, funct3))
        .chain([(0x20, 0), (0x20, 5)])
        .chain((0..8).map(|funct3| (1, funct3)))
        .collect();
    for (funct7, funct3) in operations {
        for _ in 0..2000 {
            let (a, b) = (random.operand(), random.operand());
            // Any registers but x0 to x2, which the call and the return need.
            let rd = 3 + random.next() as u32 % 29;
            let words = [r(funct7, A1, A0, funct3, rd), addi(A0, rd, 0), RET];
            let expected = oracle(funct7, funct3, a, b);
            assert_eq!(
                result(&words, &[a, b]),
                expected,
                "funct7 {funct7:#x}, funct3 {funct3}: {a:#x}, {b:#x}"
            );
            // The same with an immediate, where there is one.
            let is_shift = matches!(funct3, 1 | 5);
            if funct7 == 1 || (funct7 == 0x20 && !is_shift) {
                continue;
            }
            let immediate = if is_shift {
                (b % 32) as i32
            } else {
                (b % 4096) as i32 - 2048
            };
            let encoded = i(0b001_0011, immediate, A0, funct3, A0) + (funct7 << 25);
            assert_eq!(
                result(&[encoded, RET], &[a]),
                oracle(funct7, funct3, a, immediate as u32)
            );
        }
    }
}
