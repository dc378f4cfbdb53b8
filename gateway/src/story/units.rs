//! Figures as people read them.

use activity_schema::Timestamp;

const NS_PER_MS: i64 = 1_000_000;
const MS_PER_DAY: i64 = 86_400_000;

/// `512 B`, `1.2 kB`, `34 MB`: decimal multiples.
pub fn bytes(n: i64) -> String {
    scaled(n, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// `48 MiB`: binary multiples, for memory.
pub(super) fn memory(n: i64) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

fn scaled(n: i64, step: f64, units: &[&str]) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let mut value = n as f64;
    let mut unit = 0;
    while value.abs() >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 || value.abs() >= 10.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// `410 ns`, `250 µs`, `40 ms`, `1.24 s`, `2 m 5 s`, `3 h 2 m`, `2 d 4 h`.
pub fn duration_ns(ns: i64) -> String {
    match ns {
        i64::MIN..0 => format!("-{}", duration_ns(ns.saturating_neg().max(0))),
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        _ => duration_ms(ns / NS_PER_MS),
    }
}

pub(super) fn duration_ms(ms: i64) -> String {
    let s = ms / 1000;
    match ms {
        i64::MIN..0 => format!("-{}", duration_ms(ms.saturating_neg().max(0))),
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{s}.{:02} s", ms % 1000 / 10),
        10_000..60_000 => format!("{s}.{} s", ms % 1000 / 100),
        60_000..3_600_000 => format!("{} m {} s", s / 60, s % 60),
        3_600_000..MS_PER_DAY => format!("{} h {} m", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// `12:00:01.003`, UTC.
pub fn clock_time(t: Timestamp) -> String {
    let ms = t.as_nanos().div_euclid(NS_PER_MS).rem_euclid(MS_PER_DAY);
    format!("{:02}:{:02}:{:02}.{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

/// `12:00:01`, UTC.
pub(super) fn clock_seconds(t: Timestamp) -> String {
    clock_time(t).chars().take(8).collect()
}

/// `2026-08-01`, UTC.
pub(super) fn date(t: Timestamp) -> String {
    t.to_string().chars().take(10).collect()
}

/// `2026-08-01 12:00:01`, UTC.
pub fn date_time(t: Timestamp) -> String {
    format!("{} {}", date(t), clock_seconds(t))
}

/// `2026-08-01 12:00:01–12:00:09`, the second date only where it differs.
pub(super) fn interval(from: Timestamp, to: Timestamp) -> String {
    let end = if date(from) == date(to) { clock_seconds(to) } else { date_time(to) };
    format!("{}\u{2013}{end}", date_time(from))
}

/// `1,204`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 sample`, `9 samples`.
pub(super) fn counted(n: usize, one: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {one}{plural}", count(n as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(
            [bytes(0), bytes(999), bytes(1_234), bytes(340_000)],
            ["0 B", "999 B", "1.2 kB", "340 kB"]
        );
        assert_eq!(memory(48 * 1024 * 1024), "48 MiB");
        assert_eq!(
            [999, 1_240, 12_340, 125_000, 10_920_000, 187_200_000].map(duration_ms),
            ["999 ms", "1.24 s", "12.3 s", "2 m 5 s", "3 h 2 m", "2 d 4 h"]
        );
        assert_eq!([410, 250_000, 40_000_000].map(duration_ns), ["410 ns", "250 µs", "40 ms"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let t: Timestamp = "2026-08-01T12:00:01.003999Z".parse().unwrap();
        assert_eq!(clock_time(t), "12:00:01.003");
        assert_eq!(interval(t, t.saturating_add_nanos(8_000_000_000)), "2026-08-01 12:00:01–12:00:09");
        assert_eq!(clock_time(Timestamp::from_nanos(-1)), "23:59:59.999");
        assert_eq!(duration_ns(i64::MIN), "-2562047 h 47 m".replace("2562047 h 47 m", "106751 d 23 h"));
    }
}
