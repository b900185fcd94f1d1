// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the attribute `c_api` writes. `ffi/tests/headers.rs` includes this file too, since cbindgen
//! reads the prototypes of the C header from what is written here.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, Ident, ItemFn, Pat, PathArguments, Result,
    Token, Type, Visibility, parse_quote,
};

/// The `extern "C"` function for `given`: it has the parameters in C's types, converts each by
/// `FromC`, calls the body, and returns the code of what failed. Handles that it makes (`New`) are
/// first, so that they are null after every error; memory is last, since its length may depend on
/// the others.
pub fn c_function(given: ItemFn) -> Result<ItemFn> {
    let mut body = given;
    let (attributes, visibility) = (
        std::mem::take(&mut body.attrs),
        std::mem::replace(&mut body.vis, Visibility::Inherited),
    );
    let name = std::mem::replace(&mut body.sig.ident, parse_quote!(body));
    let (mut parameters, mut names, mut shapes) = (Vec::new(), Vec::new(), TokenStream::new());
    let (mut first, mut then, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for input in &mut body.sig.inputs {
        let parameter = Parameter::take(input)?;
        let Parameter { name, ty, .. } = &parameter;
        let c_type = parameter.c_type();
        parameters.push(quote!(#name: #c_type));
        let conversion = parameter.conversion();
        let convert = quote!(let #name: #ty = #conversion;);
        match outer(ty) {
            _ if parameter.is_bytes() => last.push(convert),
            Some((outer, _)) if outer == "New" => first.push(convert),
            _ => then.push(convert),
        }
        if let Some(shape) = &parameter.shape {
            shapes.extend(shape.values.to_token_stream());
        }
        names.push(name.clone());
    }
    // A length that only says how long an array is counts as used.
    let used = names.iter().filter(|name| mentions(&shapes, name));
    let statements = &body.block.stmts;
    body.block = parse_quote!({ #(let _ = &#used;)* #(#statements)* });
    Ok(parse_quote! {
        #(#attributes)*
        #[unsafe(no_mangle)]
        #visibility unsafe extern "C" fn #name(#(#parameters),*) -> ::std::ffi::c_int {
            #[allow(clippy::too_many_arguments, reason = "as many as in C")]
            #[inline(always)]
            #body
            crate::error::guarded(|| {
                #(#first)*
                #(#then)*
                #(#last)*
                body(#(#names),*)
            })
        }
    })
}

/// A parameter of the function in Rust.
struct Parameter {
    name: Ident,
    ty: Type,
    shape: Option<Shape>,
}

/// `#[len(values)]` of an array, or `#[bytes(values)]` of memory, which is `void *` in C.
struct Shape {
    is_bytes: bool,
    values: Punctuated<Expr, Token![,]>,
}

impl Parameter {
    /// Takes the shape off the parameter, which stays as a function of Rust has it.
    fn take(input: &mut FnArg) -> Result<Self> {
        let FnArg::Typed(typed) = input else {
            return Err(Error::new_spanned(input, "a C function has no self"));
        };
        let Pat::Ident(name) = &*typed.pat else {
            return Err(Error::new_spanned(&typed.pat, "a parameter needs a name"));
        };
        let shape = std::mem::take(&mut typed.attrs);
        let shape = shape.iter().map(Shape::of).collect::<Result<Vec<_>>>()?;
        Ok(Parameter {
            name: name.ident.clone(),
            ty: (*typed.ty).clone(),
            shape: shape.into_iter().next(),
        })
    }

    fn is_bytes(&self) -> bool {
        self.shape.as_ref().is_some_and(|shape| shape.is_bytes)
    }

    /// Its type in C.
    fn c_type(&self) -> Type {
        match c_type(&self.ty) {
            Type::Ptr(mut pointer) if self.is_bytes() => {
                *pointer.elem = parse_quote!(::std::ffi::c_void);
                Type::Ptr(pointer)
            }
            other => other,
        }
    }

    /// Its value in Rust, made of that in C.
    fn conversion(&self) -> TokenStream {
        let (name, text) = (&self.name, self.name.to_string());
        let (from, shape) = match self.shape.as_ref().map(|shape| &shape.values) {
            // C has the address of the first entry, whatever entries are in Rust.
            Some(values) if values.len() == 1 => (quote!(#name.cast()), values.to_token_stream()),
            Some(values) => (quote!(#name), quote!((#values))),
            None => (quote!(#name), quote!(())),
        };
        quote! {{
            let shape = #shape;
            // SAFETY: the caller guarantees what the text of the crate asks for.
            unsafe { crate::arguments::FromC::from_c(#text, #from, shape)? }
        }}
    }
}

impl Shape {
    fn of(attribute: &Attribute) -> Result<Self> {
        let is_bytes = attribute.path().is_ident("bytes");
        if !is_bytes && !attribute.path().is_ident("len") {
            return Err(Error::new_spanned(attribute, "#[len(..)] or #[bytes(..)]"));
        }
        let values = attribute.parse_args_with(Punctuated::parse_terminated)?;
        Ok(Shape { is_bytes, values })
    }
}

/// How C passes a type of Rust: see the implementations of `FromC`.
fn c_type(ty: &Type) -> Type {
    match ty {
        Type::Reference(reference) => {
            let to = c_type(&reference.elem);
            match reference.mutability {
                Some(_) => parse_quote!(*mut #to),
                None => parse_quote!(*const #to),
            }
        }
        Type::Slice(slice) => c_type(&slice.elem),
        Type::Array(array) => c_type(&array.elem),
        _ => match outer(ty) {
            Some((outer, Some(inner))) => {
                let inner = c_type(&inner);
                match outer.to_string().as_str() {
                    "Option" => inner,
                    "Box" | "Arc" | "Shared" | "Out" | "Room" => parse_quote!(*mut #inner),
                    "New" | "InOut" => parse_quote!(*mut *mut #inner),
                    _ => ty.clone(),
                }
            }
            Some((outer, None)) => match outer.to_string().as_str() {
                "CStr" => parse_quote!(::std::ffi::c_char),
                "SendBuffer" => parse_quote!(*const ::std::ffi::c_void),
                "RecvBuffer" | "Memory" => parse_quote!(*mut ::std::ffi::c_void),
                _ => ty.clone(),
            },
            None => ty.clone(),
        },
    }
}

/// `Outer` and `Inner` of the type `Outer<Inner>`.
fn outer(ty: &Type) -> Option<(Ident, Option<Type>)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return Some((last.ident.clone(), None));
    };
    let inner = arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(inner) => Some(inner.clone()),
        _ => None,
    });
    Some((last.ident.clone(), inner))
}

/// Whether a name stands among tokens.
fn mentions(tokens: &TokenStream, name: &Ident) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        proc_macro2::TokenTree::Ident(found) => found == *name,
        proc_macro2::TokenTree::Group(group) => mentions(&group.stream(), name),
        _ => false,
    })
}
