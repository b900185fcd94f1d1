// SPDX-License-Identifier: MIT OR Apache-2.0

//! Type expressions: datatypes as a person writes them, and as programs in other languages read
//! them.
//!
//! ```text
//! type   = name                                          double, int, byte, c_double_complex, ...
//!        | contiguous(count, type)
//!        | vector(count, blocklength, stride, type)      hvector: stride in bytes
//!        | indexed([lengths], [places], type)            hindexed: places in bytes
//!        | indexed_block(length, [places], type)         hindexed_block: places in bytes
//!        | struct([lengths], [places], [types])
//!        | subarray([sizes], [subsizes], [starts], order, type)
//!        | darray(size, rank, [sizes], [dists], [processes], order, type)
//!        | resized(lower bound, extent, type)
//!        | dup(type)
//! order  = c | fortran
//! dist   = block | block(n) | cyclic | cyclic(n) | none
//! entry  = 7            one number of a list
//!        | 7*3          the same number three times: 7, 7, 7
//!        | 0..12        from 0 to 11
//!        | 0..12:4      in steps: 0, 4, 8
//! ```
//!
//! Names are MPI's without `MPI_`, in any case; constructors are MPI's with the arguments in MPI's
//! order, except that the number of blocks is that of the lists. Space is allowed anywhere between
//! words. `parse` and [`Datatype::expression`] are each other's inverse.

mod parse;
mod write;

#[cfg(test)]
mod tests {
    use crate::Datatype;

    fn round_trip(text: &str) -> Datatype {
        let datatype: Datatype = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(datatype.expression(), text);
        datatype
    }

    #[test]
    fn every_constructor_is_read_and_written() {
        for text in [
            "int",
            "2int",
            "c_double_complex",
            "dup(int)",
            "contiguous(3,short)",
            "vector(3,2,-4,byte)",
            "hvector(3,2,40,double_int)",
            "indexed([1,0,2],[4,-9,0],int)",
            "hindexed([],[],int)",
            "indexed_block(2,[0..40:4,3,9*5],int)",
            "hindexed_block(2,[8..0:-2],int)",
            "struct([1,2],[0,16],[int,vector(2,1,2,double)])",
            "struct([],[],[])",
            "subarray([4,6],[2,3],[1,2],fortran,float)",
            "darray(6,5,[10,9],[block(5),cyclic],[2,3],c,int)",
            "darray(2,0,[10,9],[none,cyclic(2)],[1,2],c,int)",
            "resized(-8,64,2real)",
            // Counts above 63 bits belong to types without data.
            "contiguous(18446744073709551615,contiguous(0,int))",
            "vector(9223372036854775808,0,3,int)",
            "hindexed([9223372036854775808*4,0,18446744073709551615],[0..6],contiguous(0,int))",
            "hindexed([18446744073709551615,9223372036854775808,0],[5,-9,0],contiguous(0,int))",
        ] {
            round_trip(text);
        }
    }

    #[test]
    fn space_and_case_do_not_matter() {
        let datatype: Datatype = " Vector ( 3 , 1,\n 4 , MPI_DOUBLE ) ".parse().unwrap();
        assert_eq!(datatype.expression(), "vector(3,1,4,double)");
        assert_eq!(datatype.extent(), 72);
    }

    #[test]
    fn lists_have_short_forms() {
        let datatype: Datatype = "indexed([1*3,2],[0..12:4,20],int)".parse().unwrap();
        assert_eq!(datatype.expression(), "indexed([1,1,1,2],[0,4,8,20],int)");
        let odd: Datatype = "indexed_block(1,[0..10:4],int)".parse().unwrap();
        assert_eq!(odd.expression(), "indexed_block(1,[0,4,8],int)");
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, part) in [
            ("", "at its end"),
            ("vector(3,1,4,doubble)", "doubble"),
            ("vectr(3,1,4,double)", "vectr"),
            ("vector(3,1,double)", "argument 3"),
            ("vector(3,1,4,double,5)", "argument 5"),
            ("vector(3,-1,4,double)", "-1"),
            ("vector(3,1,4,double", "comma"),
            ("vector(3,1,4,double))", "end of the expression"),
            ("indexed([1,int],[0,1],int)", "different things"),
            ("indexed([1],[0,1],int)", "blocklengths"),
            ("contiguous(99999999999999999999,int)", "64 bits"),
            ("contiguous(18446744073709551616,int)", "64 bits"),
            ("resized(0,9223372036854775808,int)", "below 2^63"),
            ("indexed_block(1,[0,9223372036854775808],int)", "below 2^63"),
            ("indexed([1,-2],[0,9],int)", "-2"),
            ("indexed_block(1,[0..9999999999],int)", "at most"),
            ("indexed_block(1,[0..9:0],int)", "range"),
            ("indexed_block(1,[0..9:-1],int)", "range"),
            ("c", "a type"),
            ("[int]", "a type"),
            ("3", "a type"),
            ("é", "a type"),
            ("contiguous(3,é)", "a type"),
        ] {
            let error = text.parse::<Datatype>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn deep_types_need_no_stack() {
        let depth = 200_000;
        let text = format!("{}int{}", "dup(".repeat(depth), ")".repeat(depth));
        assert_eq!(round_trip(&text).size(), 4);
    }
}
