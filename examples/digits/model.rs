//! A perceptron with one hidden layer, its gradient, and stochastic gradient descent with momentum. All parameters are
//! in one vector, so that a step needs one all-reduce. Used by the example `digits`.

use ndarray::{Array2, ArrayView1, ArrayView2, Axis};
use serde::{Deserialize, Serialize};

use super::data::{CLASSES, PIXELS, Sample, matrix};

const HIDDEN: usize = 48;
/// The end of each layer's part of the vector: weights and biases of the first layer, then of the second.
const ENDS: [usize; 4] = [
    PIXELS * HIDDEN,
    PIXELS * HIDDEN + HIDDEN,
    PIXELS * HIDDEN + HIDDEN + HIDDEN * CLASSES,
    PIXELS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES,
];
const PARAMETERS: usize = ENDS[3];

const LEARNING_RATE: f32 = 0.1;
const MOMENTUM: f32 = 0.9;

/// The model and its optimiser.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Model {
    #[serde(with = "elastic_node::bulk")]
    parameters: Vec<f32>,
    #[serde(with = "elastic_node::bulk")]
    velocity: Vec<f32>,
}

/// The parameters, by layer.
struct Layers<'a> {
    hidden_weights: ArrayView2<'a, f32>,
    hidden_bias: ArrayView1<'a, f32>,
    output_weights: ArrayView2<'a, f32>,
    output_bias: ArrayView1<'a, f32>,
}

impl Model {
    /// An untrained model. Its weights are spread evenly within Glorot's bounds by a low-discrepancy sequence (Weyl's,
    /// on the golden ratio), so that it needs no random numbers.
    pub(crate) fn new() -> Self {
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        let spread = |inputs: usize, outputs: usize| (6.0 / (inputs + outputs) as f64).sqrt();
        let parameters = (0..PARAMETERS)
            .map(|index| {
                let bound = match index {
                    _ if index < ENDS[0] => spread(PIXELS, HIDDEN),
                    _ if (ENDS[1]..ENDS[2]).contains(&index) => spread(HIDDEN, CLASSES),
                    _ => 0.0,
                };
                let place = (index as f64 * GOLDEN).fract();
                ((2.0 * place - 1.0) * bound) as f32
            })
            .collect();
        Self { parameters, velocity: vec![0.0; PARAMETERS] }
    }

    /// The trained parameters as little-endian bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.parameters.iter().flat_map(|parameter| parameter.to_le_bytes()).collect()
    }

    fn layers(&self) -> Layers<'_> {
        let (hidden, output) = self.parameters.split_at(ENDS[1]);
        let (hidden_weights, hidden_bias) = hidden.split_at(ENDS[0]);
        let (output_weights, output_bias) = output.split_at(ENDS[2] - ENDS[1]);
        let shaped = "the vector is as long as its layers";
        Layers {
            hidden_weights: ArrayView2::from_shape((PIXELS, HIDDEN), hidden_weights).expect(shaped),
            hidden_bias: ArrayView1::from(hidden_bias),
            output_weights: ArrayView2::from_shape((HIDDEN, CLASSES), output_weights)
                .expect(shaped),
            output_bias: ArrayView1::from(output_bias),
        }
    }

    /// The activations of the hidden layer, and the probability of each class, by row.
    fn forward(&self, images: &Array2<f32>) -> (Array2<f32>, Array2<f32>) {
        let layers = self.layers();
        let hidden = (images.dot(&layers.hidden_weights) + layers.hidden_bias).mapv(f32::tanh);
        let mut output = hidden.dot(&layers.output_weights) + layers.output_bias;
        for mut row in output.rows_mut() {
            let largest = row.fold(f32::NEG_INFINITY, |largest, value| largest.max(*value));
            row.mapv_inplace(|value| (value - largest).exp());
            let sum = row.sum();
            row.mapv_inplace(|value| value / sum);
        }
        (hidden, output)
    }

    /// The mean gradient of the cross-entropy over these samples, times `weight`, followed by the mean loss, times
    /// `weight`. All zero without samples.
    pub(crate) fn gradient<'a>(
        &self,
        samples: impl ExactSizeIterator<Item = &'a Sample>,
        weight: f32,
    ) -> Vec<f32> {
        let count = samples.len();
        if count == 0 {
            return vec![0.0; PARAMETERS + 1];
        }
        let (images, labels) = matrix(samples);
        let (hidden, mut output) = self.forward(&images);
        let scale = weight / count as f32;
        let mut loss = 0.0;
        for (mut row, label) in output.rows_mut().into_iter().zip(labels) {
            loss -= row[label].max(f32::MIN_POSITIVE).ln();
            row[label] -= 1.0;
        }
        output *= scale;
        let mut below = output.dot(&self.layers().output_weights.t());
        below.zip_mut_with(&hidden, |delta, value| *delta *= 1.0 - value * value);
        let mut gradient = Vec::with_capacity(PARAMETERS + 1);
        gradient.extend(images.t().dot(&below).iter());
        gradient.extend(below.sum_axis(Axis(0)).iter());
        gradient.extend(hidden.t().dot(&output).iter());
        gradient.extend(output.sum_axis(Axis(0)).iter());
        gradient.push(loss * scale);
        gradient
    }

    /// Takes one step against the gradient; any values behind the gradient are ignored.
    pub(crate) fn apply(&mut self, gradient: &[f32]) {
        let moved = self.parameters.iter_mut().zip(&mut self.velocity).zip(gradient);
        for ((parameter, velocity), slope) in moved {
            *velocity = MOMENTUM * *velocity - LEARNING_RATE * slope;
            *parameter += *velocity;
        }
    }

    /// The share of samples that are classified correctly.
    pub(crate) fn accuracy(&self, samples: &[Sample]) -> f64 {
        let (images, labels) = matrix(samples.iter());
        let (_, output) = self.forward(&images);
        let right = output
            .rows()
            .into_iter()
            .zip(labels)
            .filter(|(row, label)| row.iter().all(|probability| *probability <= row[*label]));
        right.count() as f64 / samples.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::Digits;
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let digits = Digits::load().expect("the data is part of the program");
        let samples = || digits.train[..20].iter();
        let model = Model::new();
        let gradient = model.gradient(samples(), 1.0);
        for index in [5, 700, ENDS[0] + 3, ENDS[1] + 30, ENDS[2] + 4] {
            let mut moved = model.clone();
            moved.parameters[index] += 1e-2;
            let above = moved.gradient(samples(), 1.0)[PARAMETERS];
            moved.parameters[index] -= 2e-2;
            let below = moved.gradient(samples(), 1.0)[PARAMETERS];
            let slope = (above - below) / 2e-2;
            assert!((slope - gradient[index]).abs() < 1e-3, "{slope} {}", gradient[index]);
        }
    }
}
