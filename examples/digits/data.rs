//! The handwritten digits, compiled into the program; their source: `examples/data/README.md`. Used by the example
//! `digits` and by `demo`.

use ndarray::Array2;

/// Number of pixels in an image.
pub(crate) const PIXELS: usize = 64;
/// Number of classes: the digits 0 to 9.
pub(crate) const CLASSES: usize = 10;

/// Every fifth image is a test image; the same ones on every rank.
const TEST_EVERY: usize = 5;

static CSV: &str = include_str!("../data/digits.csv");

/// An image and its label.
pub(crate) struct Sample {
    /// The grey levels, from 0 (white) to 1 (black).
    pub(crate) pixels: [f32; PIXELS],
    /// The digit that the image shows.
    pub(crate) label: usize,
}

/// The training images and the test images.
pub(crate) struct Digits {
    pub(crate) train: Vec<Sample>,
    pub(crate) test: Vec<Sample>,
}

impl Digits {
    /// Reads the data.
    ///
    /// # Errors
    /// The error names the line that is not an image.
    pub(crate) fn load() -> Result<Self, String> {
        let mut digits = Self { train: Vec::new(), test: Vec::new() };
        for (index, line) in CSV.lines().enumerate() {
            let sample = parse(line).ok_or_else(|| format!("line {} is no image", index + 1))?;
            let part = if index % TEST_EVERY == 0 { &mut digits.test } else { &mut digits.train };
            part.push(sample);
        }
        Ok(digits)
    }
}

fn parse(line: &str) -> Option<Sample> {
    let mut numbers = line.split(',').map(str::parse::<u8>);
    let mut pixels = [0.0; PIXELS];
    for pixel in &mut pixels {
        *pixel = f32::from(numbers.next()?.ok()?) / 16.0;
    }
    let label = usize::from(numbers.next()?.ok()?);
    (label < CLASSES && numbers.next().is_none()).then_some(Sample { pixels, label })
}

/// Images as the rows of a matrix, and their labels.
pub(crate) fn matrix<'a>(
    samples: impl ExactSizeIterator<Item = &'a Sample>,
) -> (Array2<f32>, Vec<usize>) {
    let mut images = Array2::zeros((samples.len(), PIXELS));
    let labels = samples
        .zip(images.rows_mut())
        .map(|(sample, mut row)| {
            row.iter_mut().zip(&sample.pixels).for_each(|(to, from)| *to = *from);
            sample.label
        })
        .collect();
    (images, labels)
}
