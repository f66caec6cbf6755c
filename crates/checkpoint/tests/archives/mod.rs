//! Zip archives as torch writes them, for tests that need one with a fault.

/// An archive of stored entries in the folder `name`, without padding.
pub(crate) fn archive(name: &str, entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut directory = Vec::new();
    for (entry, data) in entries {
        let entry = format!("{name}/{entry}");
        let begin = u32::try_from(file.len()).expect("small");
        let numbers = numbers(&entry, data);
        file.extend(b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0");
        file.extend(numbers);
        file.extend([0; 2]);
        file.extend(entry.as_bytes());
        file.extend(*data);
        directory.extend(b"PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0");
        directory.extend(numbers);
        directory.extend([0; 12]);
        directory.extend(begin.to_le_bytes());
        directory.extend(entry.as_bytes());
    }
    let begin = u32::try_from(file.len()).expect("small");
    let count = u16::try_from(entries.len()).expect("few").to_le_bytes();
    let len = u32::try_from(directory.len()).expect("small");
    file.extend(directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend(count);
    file.extend(count);
    file.extend(len.to_le_bytes());
    file.extend(begin.to_le_bytes());
    file.extend([0; 2]);
    file
}

/// Checksum, size, stored size and length of the name.
fn numbers(entry: &str, data: &[u8]) -> [u8; 14] {
    let len = u32::try_from(data.len()).expect("small").to_le_bytes();
    let name_len = u16::try_from(entry.len()).expect("small").to_le_bytes();
    let mut numbers = [0; 14];
    let parts = [&crc32(data).to_le_bytes()[..], &len, &len, &name_len].concat();
    numbers.copy_from_slice(&parts);
    numbers
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 * (sum & 1))
        })
    })
}
