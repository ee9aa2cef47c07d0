//! Structures whose layout is checked: against numbers here when this crate is compiled, and against the headers of
//! rdma-core in `tests/headers.rs`.

/// A structure as the C headers have it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name, which is the same in C.
    pub name: &'static str,
    /// The size in bytes, or `None` where this crate knows the beginning only.
    pub size: Option<usize>,
    /// The name in C and the offset in bytes of each field.
    pub fields: &'static [(&'static str, usize)],
}

/// The name of a field in C: that of Rust unless another is given.
macro_rules! c_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $c:literal) => {
        $c
    };
}

macro_rules! size {
    ($name:ident whole $size:literal) => {
        const _: () = assert!(std::mem::size_of::<$name>() == $size);
    };
    ($name:ident prefix) => {};
}

macro_rules! size_option {
    (whole $size:literal) => {
        Some($size)
    };
    (prefix) => {
        None
    };
}

/// Declares structures with `offset field: type`, and a list of their layouts.
///
/// `whole SIZE` structures have their C size. Of a `prefix` only the beginning is declared: what follows differs between
/// machines (pthread types) or is not needed, and such a structure is only ever made by the library.
macro_rules! structures {
    ($list:ident: $(
        $(#[$meta:meta])*
        struct $name:ident ($kind:ident $($size:literal)?) {
            $( $offset:literal $field:ident $($c:literal)? : $ty:ty, )*
            $( .. $rest:ty )?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("`struct ", stringify!($name), "`")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $( pub $field: $ty, )*
                $( pub rest: $rest, )?
            }
            $( const _: () = assert!(std::mem::offset_of!($name, $field) == $offset); )*
            $crate::ffi::layout::size!($name $kind $($size)?);
        )*
        /// The layouts of the structures of this module.
        pub(super) const $list: &[$crate::ffi::Layout] = &[$(
            $crate::ffi::Layout {
                name: stringify!($name),
                size: $crate::ffi::layout::size_option!($kind $($size)?),
                fields: &[$( ($crate::ffi::layout::c_name!($field $($c)?), $offset) ),*],
            }
        ),*];
    };
}

pub(crate) use {c_name, size, size_option, structures};
