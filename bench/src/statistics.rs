//! Order statistics of a few measurements. Used by most benchmarks.

/// The smallest measurement that at least this share of all do not exceed (nearest rank); none of none.
pub(crate) fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied()
}

/// The median; the lower one of two.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ranks() {
        let values = [4.0, 1.0, 3.0, 2.0, 5.0];
        assert_eq!(median(&values), Some(3.0));
        assert_eq!(percentile(&values, 0.99), Some(5.0));
        assert_eq!(percentile(&values, 0.2), Some(1.0));
        assert_eq!(median(&[]), None);
    }
}
