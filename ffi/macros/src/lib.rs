// SPDX-License-Identifier: MIT OR Apache-2.0

//! The attribute `c_api` of the crate `libcopy-ffi`, whose text says how it is used.

mod expand;

use proc_macro::TokenStream;
use quote::ToTokens;

/// Makes a function of the C API out of one in Rust.
#[proc_macro_attribute]
pub fn c_api(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = syn::parse(item).and_then(expand::c_function);
    match expanded {
        Ok(mut function) => {
            let safety = "# Safety\n\nThe caller guarantees what the text of the crate asks for.";
            function.attrs.push(syn::parse_quote!(#[doc = ""]));
            function.attrs.push(syn::parse_quote!(#[doc = #safety]));
            function.into_token_stream().into()
        }
        Err(error) => error.into_compile_error().into(),
    }
}
