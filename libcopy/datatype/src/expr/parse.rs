// SPDX-License-Identifier: MIT OR Apache-2.0

//! Type expressions, read.

use std::str::FromStr;

use super::super::datatype::{Datatype, Distribution, Order};
use super::super::named::Named;
use super::super::nearest::nearest;
use crate::{Allowed, Error, Result};

/// No list may have more entries: a range is a few characters, but its entries are memory.
const LONGEST: u64 = 1 << 26;

/// An argument of a constructor.
enum Value {
    Number(i128),
    Numbers(Numbers),
    Type(Datatype),
    Types(Vec<Datatype>),
    Order(Order),
    Distribution(Distribution),
    Distributions(Vec<Distribution>),
}

/// A list of numbers, each from the least of `i64` to the largest of `u64`.
#[derive(Default)]
struct Numbers {
    /// Their lowest 64 bits.
    bits: Vec<i64>,
    lowest: i128,
    highest: i128,
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Number(_) => "a number",
            Value::Numbers(_) => "a list of numbers",
            Value::Type(_) => "a type",
            Value::Types(_) => "a list of types",
            Value::Order(_) => "an order",
            Value::Distribution(_) => "a distribution",
            Value::Distributions(_) => "a list of distributions",
        }
    }
}

/// A constructor or a list that is not closed yet.
struct Open<'a> {
    /// The constructor; a list has none.
    name: Option<&'a str>,
    at: usize,
    values: Vec<Value>,
    numbers: Numbers,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    open: Vec<Open<'a>>,
}

/// What makes a type of others.
const CONSTRUCTORS: [&str; 12] = [
    "contiguous",
    "vector",
    "hvector",
    "indexed",
    "hindexed",
    "indexed_block",
    "hindexed_block",
    "struct",
    "subarray",
    "darray",
    "resized",
    "dup",
];

/// The name that begins at byte `at` is none.
fn unknown(what: &'static str, name: &str, at: usize, nearest: Option<&'static str>) -> Error {
    Error::UnknownName {
        what,
        name: name.to_owned(),
        at: at + 1,
        nearest,
    }
}

fn wrong(value: impl Into<crate::Value>, allowed: impl Into<Allowed>) -> Error {
    Error::argument("the type expression", value, allowed)
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes `what` if it comes next.
    fn eat(&mut self, what: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }

    /// An error about what comes next.
    fn unexpected(&self, wanted: impl Into<Allowed>) -> Error {
        let next: String = self.rest().chars().take(20).collect();
        let place = self.text[..self.at].chars().count() + 1;
        if next.is_empty() {
            wrong(format!("at its end at character {place}"), wanted)
        } else {
            wrong(format!("{next:?} at character {place}"), wanted)
        }
    }

    fn word(&mut self) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let len = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn number(&mut self) -> Result<i128> {
        self.skip_space();
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let digits = rest[sign..]
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len() - sign);
        let number = rest[..sign + digits].parse().ok();
        let fits = |number: &i128| i64::try_from(*number).is_ok() || u64::try_from(*number).is_ok();
        let Some(number) = number.filter(fits) else {
            return Err(self.unexpected("a number of 64 bits"));
        };
        self.at += sign + digits;
        Ok(number)
    }

    /// A number, or in a list a repetition or a range.
    fn numbers(&mut self) -> Result<()> {
        let start = self.at;
        let first = self.number()?;
        let in_list = self.open.last().is_some_and(|open| open.name.is_none());
        let (length, step) = if in_list && self.eat("*") {
            (self.number()?, 0)
        } else if in_list && self.eat("..") {
            let end = self.number()?;
            let step = if self.eat(":") { self.number()? } else { 1 };
            let span = end - first;
            if step == 0 || (span < 0) != (step < 0) && span != 0 {
                self.at = start;
                return Err(self.unexpected("a range whose step leads to its end"));
            }
            ((span + step - step.signum()) / step, step)
        } else {
            (1, 0)
        };
        let Some(open) = self.open.last_mut() else {
            self.at = start;
            return Err(self.unexpected("a type"));
        };
        if !in_list {
            open.values.push(Value::Number(first));
            return Ok(());
        }
        if length < 0 || length + open.numbers.bits.len() as i128 > i128::from(LONGEST) {
            self.at = start;
            let wanted = format!("a list of at most {LONGEST} entries");
            return Err(self.unexpected(wanted));
        }
        // The last entry lies before the range's end, so no entry leaves 64 bits.
        let entries = (0..length).map(|i| (first + i * step) as i64);
        open.numbers.bits.extend(entries);
        if length > 0 {
            let (numbers, last) = (&mut open.numbers, first + (length - 1) * step);
            numbers.lowest = numbers.lowest.min(first).min(last);
            numbers.highest = numbers.highest.max(first).max(last);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<Datatype> {
        loop {
            self.skip_space();
            let mut done = None;
            let at = self.at;
            match self.rest().chars().next() {
                Some('[') => {
                    self.at += 1;
                    self.open.push(Open {
                        name: None,
                        at,
                        values: Vec::new(),
                        numbers: Numbers::default(),
                    });
                    if !self.eat("]") {
                        continue;
                    }
                    done = self.close()?;
                }
                Some(c) if c == '-' || c.is_ascii_digit() && !self.is_name() => self.numbers()?,
                Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                    let name = self.word();
                    if self.eat("(") {
                        self.open.push(Open {
                            name: Some(name),
                            at,
                            values: Vec::new(),
                            numbers: Numbers::default(),
                        });
                        if !self.eat(")") {
                            continue;
                        }
                        done = self.close()?;
                    } else {
                        let value = self.plain(name, at)?;
                        done = self.give(value);
                    }
                }
                _ => return Err(self.unexpected("a type, a number or a list")),
            }
            // After a value: a comma, or what closes the innermost open thing.
            loop {
                self.skip_space();
                let Some(open) = self.open.last() else {
                    break;
                };
                let closing = if open.name.is_some() { ")" } else { "]" };
                if self.eat(",") {
                    break;
                }
                if !self.eat(closing) {
                    let wanted = format!("a comma or '{closing}'");
                    return Err(self.unexpected(wanted));
                }
                done = self.close()?;
            }
            if !self.open.is_empty() {
                continue;
            }
            self.skip_space();
            if !self.rest().is_empty() {
                return Err(self.unexpected("the end of the expression"));
            }
            return match done {
                Some(Value::Type(datatype)) => Ok(datatype),
                Some(value) => Err(wrong(value.kind(), "a type")),
                None => Err(wrong("incomplete", "a type")),
            };
        }
    }

    /// Whether a name that starts with a digit (`2int`) comes next.
    fn is_name(&self) -> bool {
        self.rest()
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    }

    /// Hands a value to what is open; gives it back if nothing is.
    fn give(&mut self, value: Value) -> Option<Value> {
        match self.open.last_mut() {
            Some(open) => {
                open.values.push(value);
                None
            }
            None => Some(value),
        }
    }

    /// A word without arguments.
    fn plain(&self, name: &str, at: usize) -> Result<Value> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "c" => Value::Order(Order::C),
            "fortran" => Value::Order(Order::Fortran),
            "block" => Value::Distribution(Distribution::Block(None)),
            "cyclic" => Value::Distribution(Distribution::Cyclic(None)),
            "none" => Value::Distribution(Distribution::None),
            lower => match Named::from_name(lower) {
                Some(named) => Value::Type(Datatype::named(named)),
                None if CONSTRUCTORS.contains(&lower) => {
                    return Err(wrong(
                        format!("{name:?} at character {}", at + 1),
                        "followed by its arguments in parentheses",
                    ));
                }
                None => {
                    let bare = lower.strip_prefix("mpi_").unwrap_or(lower);
                    return Err(unknown("type", name, at, Named::nearest(bare)));
                }
            },
        })
    }

    fn close(&mut self) -> Result<Option<Value>> {
        let Some(open) = self.open.pop() else {
            return Ok(None);
        };
        let value = match open.name {
            None => list(open)?,
            Some(name) => {
                let arguments = Arguments {
                    name,
                    at: open.at,
                    values: open.values.into_iter(),
                    taken: 0,
                };
                construct(arguments)?
            }
        };
        Ok(self.give(value))
    }
}

fn list(open: Open) -> Result<Value> {
    let mixed = |at: usize| {
        wrong(
            format!("a list of different things at character {}", at + 1),
            "a list of numbers, of types or of distributions",
        )
    };
    if open.values.is_empty() {
        return Ok(Value::Numbers(open.numbers));
    }
    if !open.numbers.bits.is_empty() {
        return Err(mixed(open.at));
    }
    let mut types = Vec::new();
    let mut distributions = Vec::new();
    for value in open.values {
        match value {
            Value::Type(datatype) => types.push(datatype),
            Value::Distribution(distribution) => distributions.push(distribution),
            _ => return Err(mixed(open.at)),
        }
    }
    match (types.is_empty(), distributions.is_empty()) {
        (false, true) => Ok(Value::Types(types)),
        (true, false) => Ok(Value::Distributions(distributions)),
        _ => Err(mixed(open.at)),
    }
}

/// The arguments of a constructor, taken one after the other.
struct Arguments<'a> {
    name: &'a str,
    at: usize,
    values: std::vec::IntoIter<Value>,
    taken: usize,
}

impl Arguments<'_> {
    fn wrong(&self, got: &str, what: impl Into<Allowed>) -> Error {
        wrong(
            format!(
                "{got} as argument {} of {} at character {}",
                self.taken,
                self.name,
                self.at + 1
            ),
            what,
        )
    }

    fn take<T>(&mut self, what: &str, pick: impl FnOnce(Value) -> Result<T, Value>) -> Result<T> {
        self.taken += 1;
        match self.values.next().map(pick) {
            Some(Ok(value)) => Ok(value),
            Some(Err(value)) => Err(self.wrong(value.kind(), what.to_owned())),
            None => Err(self.wrong("nothing", what.to_owned())),
        }
    }

    fn any_number(&mut self, what: &str) -> Result<i128> {
        self.take(what, |value| match value {
            Value::Number(number) => Ok(number),
            other => Err(other),
        })
    }

    fn any_numbers(&mut self, what: &str) -> Result<Numbers> {
        self.take(what, |value| match value {
            Value::Numbers(numbers) => Ok(numbers),
            other => Err(other),
        })
    }

    fn too_small(&self, number: i128, what: &str) -> Error {
        self.wrong(&number.to_string(), format!("{what}, at least 0"))
    }

    fn too_large(&self, number: i128, what: &str) -> Error {
        self.wrong(&number.to_string(), format!("{what}, below 2^63"))
    }

    fn number(&mut self, what: &str) -> Result<i64> {
        let number = self.any_number(what)?;
        i64::try_from(number).map_err(|_| self.too_large(number, what))
    }

    fn count(&mut self, what: &str) -> Result<u64> {
        let number = self.any_number(what)?;
        u64::try_from(number).map_err(|_| self.too_small(number, what))
    }

    fn numbers(&mut self, what: &str) -> Result<Vec<i64>> {
        let list = self.any_numbers(what)?;
        if i64::try_from(list.highest).is_err() {
            return Err(self.too_large(list.highest, what));
        }
        Ok(list.bits)
    }

    fn counts(&mut self, what: &str) -> Result<Vec<u64>> {
        let list = self.any_numbers(what)?;
        if list.lowest < 0 {
            return Err(self.too_small(list.lowest, what));
        }
        Ok(list.bits.into_iter().map(|bits| bits as u64).collect())
    }

    fn datatype(&mut self) -> Result<Datatype> {
        self.take("a type", |value| match value {
            Value::Type(datatype) => Ok(datatype),
            other => Err(other),
        })
    }

    fn order(&mut self) -> Result<Order> {
        self.take("c or fortran", |value| match value {
            Value::Order(order) => Ok(order),
            other => Err(other),
        })
    }
}

fn construct(mut arguments: Arguments) -> Result<Value> {
    let a = &mut arguments;
    let datatype = match a.name.to_ascii_lowercase().as_str() {
        "block" => {
            let block = Distribution::Block(Some(a.count("a number of elements")?));
            return finish(arguments, Value::Distribution(block));
        }
        "cyclic" => {
            let block = Distribution::Cyclic(Some(a.count("a number of elements")?));
            return finish(arguments, Value::Distribution(block));
        }
        "dup" => a.datatype()?.dup(),
        "contiguous" => {
            let count = a.count("the count")?;
            a.datatype()?.contiguous(count)?
        }
        name @ ("vector" | "hvector") => {
            let byte_stride = name == "hvector";
            let count = a.count("the count")?;
            let blocklength = a.count("the length of a block")?;
            let stride = a.number("the stride")?;
            let child = a.datatype()?;
            if byte_stride {
                child.hvector(count, blocklength, stride)?
            } else {
                child.vector(count, blocklength, stride)?
            }
        }
        name @ ("indexed" | "hindexed") => {
            let bytes = name == "hindexed";
            let lengths = a.counts("a list of block lengths")?;
            let places = a.numbers("a list of displacements")?;
            let child = a.datatype()?;
            if bytes {
                child.hindexed(&lengths, &places)?
            } else {
                child.indexed(&lengths, &places)?
            }
        }
        name @ ("indexed_block" | "hindexed_block") => {
            let bytes = name == "hindexed_block";
            let length = a.count("the length of a block")?;
            let places = a.numbers("a list of displacements")?;
            let child = a.datatype()?;
            if bytes {
                child.hindexed_block(length, &places)?
            } else {
                child.indexed_block(length, &places)?
            }
        }
        "struct" => {
            let lengths = a.counts("a list of block lengths")?;
            let places = a.numbers("a list of displacements")?;
            let children = a.take("a list of types", |value| match value {
                Value::Types(types) => Ok(types),
                Value::Numbers(none) if none.bits.is_empty() => Ok(Vec::new()),
                other => Err(other),
            })?;
            Datatype::structure(&lengths, &places, &children)?
        }
        "subarray" => {
            let sizes = a.counts("a list of sizes")?;
            let subsizes = a.counts("a list of sizes")?;
            let starts = a.counts("a list of starts")?;
            let order = a.order()?;
            a.datatype()?.subarray(&sizes, &subsizes, &starts, order)?
        }
        "darray" => {
            let size = a.count("the number of processes")?;
            let rank = a.count("the rank")?;
            let sizes = a.counts("a list of sizes")?;
            let distributions = a.take("a list of distributions", |value| match value {
                Value::Distributions(distributions) => Ok(distributions),
                other => Err(other),
            })?;
            let processes = a.counts("a list of numbers of processes")?;
            let order = a.order()?;
            a.datatype()?
                .darray(size, rank, &sizes, &distributions, &processes, order)?
        }
        "resized" => {
            let lower_bound = a.number("the lower bound")?;
            let extent = a.number("the extent")?;
            a.datatype()?.resized(lower_bound, extent)?
        }
        other => {
            let nearest = nearest(other, CONSTRUCTORS.into_iter());
            return Err(unknown("constructor", a.name, a.at, nearest));
        }
    };
    finish(arguments, Value::Type(datatype))
}

fn finish(mut arguments: Arguments, value: Value) -> Result<Value> {
    match arguments.values.next() {
        None => Ok(value),
        Some(more) => {
            arguments.taken += 1;
            Err(arguments.wrong(more.kind(), "as many arguments as the constructor has"))
        }
    }
}

impl FromStr for Datatype {
    type Err = Error;

    /// Builds the type that an expression describes.
    fn from_str(text: &str) -> Result<Datatype> {
        let mut parser = Parser {
            text,
            at: 0,
            open: Vec::new(),
        };
        parser.run()
    }
}
