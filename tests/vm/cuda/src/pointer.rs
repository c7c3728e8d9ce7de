//! Pointers from C callers, checked against null once, here. Only C callers create these types, and they must follow
//! `cuda.h`: null, or valid for the type.

use std::ffi::{CStr, c_char, c_void};

use crate::call::{Answer, Code};

/// An output location for one value.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value.
    pub fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees space for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A text buffer with a known length.
#[repr(transparent)]
pub struct Text(*mut c_char);

impl Text {
    /// Writes the text with its terminating null, truncated if it is too long.
    pub fn put(self, room: i32, text: &str) -> Answer {
        let room = usize::try_from(room).map_err(|_negative| Code::INVALID_VALUE)?;
        if self.0.is_null() || room == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let length = text.len().min(room - 1);
        // SAFETY: the text and its terminator fit into the space that the caller guarantees.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, length);
            self.0.add(length).write(0);
        }
        Ok(())
    }
}

/// Text from the caller.
#[repr(transparent)]
pub struct Given(*const c_char);

impl Given {
    /// The text.
    pub fn text(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller guarantees a terminated text.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_not_utf8| Code::INVALID_VALUE)
    }
}

/// Host memory that the caller provides for a copy.
#[repr(transparent)]
pub struct Host(*mut c_void);

impl Host {
    /// Copies from there.
    pub fn read(&self, to: &mut [u8]) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller guarantees this many bytes; `to` is memory of this library.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies there.
    pub fn write(&self, from: &[u8]) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as above, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.0.cast(), from.len()) };
        Ok(())
    }
}

/// The parameters of a kernel: pointers to values of known types.
#[repr(transparent)]
pub struct Parameters(*mut *mut c_void);

impl Parameters {
    /// The parameter at this index.
    pub fn get<T: Copy>(&self, place: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller guarantees a pointer to each parameter of the kernel, with its type.
        Ok(unsafe { self.0.add(place).read().cast::<T>().read_unaligned() })
    }
}
