//! Pointers from C callers, made safe to use: each is checked against null once, here.
//!
//! The types are transparent over the pointer, and only C callers create them. The caller must follow NVML's header:
//! null, or valid for the type and for the given count.

use std::ffi::{CStr, c_char};

use crate::call::{Answer, Code};

/// An output location for one value, or for several.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value.
    pub fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller guarantees space for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the values; the caller has space for `room` of them.
    pub fn put_all(self, room: u32, values: impl ExactSizeIterator<Item = T>) -> Answer {
        if values.len() > room as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        if self.0.is_null() && values.len() > 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        for (index, value) in values.enumerate() {
            // SAFETY: `index` is below `room`, for which the caller guarantees space.
            unsafe { self.0.add(index).write(value) };
        }
        Ok(())
    }

    /// The existing values, to be changed in place.
    pub fn each(&mut self, count: usize) -> Answer<&mut [T]> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller guarantees `count` initialized values; the borrow of `self` prevents a
        // second slice.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }

    /// The number at the start of a versioned structure.
    pub fn version(&self) -> Answer<u32> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: every versioned structure of NVML starts with an `unsigned int`.
        Ok(unsafe { self.0.cast::<u32>().read() })
    }

    /// The same pointer for another version of the structure.
    pub fn seen_as<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Writes the structure if the caller requested this version of it.
    pub fn put_version(self, number: u32, value: T) -> Answer {
        if self.version()? != version_of::<T>(number) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        self.put(value)
    }
}

impl<T: Copy> Out<T> {
    /// The value that the caller wrote there.
    pub fn read(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller guarantees a value.
        Ok(unsafe { self.0.read() })
    }
}

/// NVML's `NVML_STRUCT_VERSION`: the size and the version in one number.
pub fn version_of<T>(number: u32) -> u32 {
    // NVML's structures are far below 16 MiB, so the size never reaches the version's bits.
    (size_of::<T>() as u32) | (number << 24)
}

/// A text buffer with a known length.
#[repr(transparent)]
pub struct Text(*mut c_char);

impl Text {
    /// Writes the text with its terminating null.
    pub fn put(self, room: u32, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if text.len() >= room as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: the text and its terminator fit into the space that the caller guarantees.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, text.len());
            self.0.add(text.len()).write(0);
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
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller guarantees a terminated text.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_not_utf8| Code::INVALID_ARGUMENT)
    }
}

/// Text in a field of fixed length, truncated if it is too long.
pub fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte as c_char;
    }
    field
}
