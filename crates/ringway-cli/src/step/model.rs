//! The gradients of well-known models: how many, how large, in which order, and how long backward takes for each.
//!
//! Made from the architectures, as their publications and public code define them; nothing is downloaded.

use std::{fmt, str::FromStr};

/// What a forward pass goes through, one after the other: a parameter tensor, or work that has none of its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layer {
    pub(super) name: String,
    /// Elements of the parameter, and of its gradient; 0 where there is none.
    pub(super) elements: usize,
    /// Forward floating-point operations of a sample; backward has twice as many.
    pub(super) work: f64,
}

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    /// He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1: 152 layers, 224 x 224 pixels.
    Resnet152,
    /// Dai et al., "Transformer-XL", ACL 2019: the base model for WikiText-103.
    TransformerXl,
    /// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: the smallest.
    Gpt2,
    /// The same, the largest.
    Gpt2Xl,
    /// Touvron et al., "LLaMA", 2023, table 2: one of the 32 layers of the 7B model.
    Llama7bLayer,
}

impl Model {
    const ALL: [(&'static str, Self); 5] = [
        ("resnet152", Self::Resnet152),
        ("transformer-xl", Self::TransformerXl),
        ("gpt2", Self::Gpt2),
        ("gpt2-xl", Self::Gpt2Xl),
        ("llama-7b-layer", Self::Llama7bLayer),
    ];

    /// In the order of forward.
    pub(super) fn layers(self) -> Vec<Layer> {
        let mut layers = Layers::default();
        match self {
            Self::Resnet152 => resnet(&mut layers, [3, 8, 36, 3]),
            Self::TransformerXl => transformer_xl(&mut layers),
            Self::Gpt2 => gpt2(&mut layers, 12, 768),
            Self::Gpt2Xl => gpt2(&mut layers, 48, 1600),
            Self::Llama7bLayer => llama_layer(&mut layers),
        }
        layers.0
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, model)| model == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|&(_, model)| model).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

#[derive(Default)]
struct Layers(Vec<Layer>);

impl Layers {
    fn push(&mut self, name: String, elements: usize, work: f64) {
        self.0.push(Layer {
            name,
            elements,
            work,
        });
    }

    /// A matrix that each of `positions` is multiplied with.
    fn matrix(&mut self, name: String, rows: usize, columns: usize, positions: usize) {
        let work = 2.0 * (rows * columns) as f64 * positions as f64;
        self.push(name, rows * columns, work);
    }

    /// A vector that is added to, or multiplied with, each of `positions`.
    fn vector(&mut self, name: String, elements: usize, positions: usize) {
        self.push(name, elements, (elements * positions) as f64);
    }

    /// A convolution without bias, and its batch normalisation.
    fn convolution(&mut self, name: &str, (from, to): (usize, usize), kernel: usize, side: usize) {
        let positions = side * side;
        self.matrix(
            format!("{name}.weight"),
            from * kernel * kernel,
            to,
            positions,
        );
        self.vector(format!("{name}.norm.weight"), to, positions);
        self.vector(format!("{name}.norm.bias"), to, positions);
    }

    fn linear(&mut self, name: &str, from: usize, to: usize, positions: usize) {
        self.matrix(format!("{name}.weight"), from, to, positions);
        self.vector(format!("{name}.bias"), to, positions);
    }

    fn layer_norm(&mut self, name: &str, width: usize, positions: usize) {
        self.vector(format!("{name}.weight"), width, positions);
        self.vector(format!("{name}.bias"), width, positions);
    }
}

/// Bottleneck blocks in four stages.
fn resnet(layers: &mut Layers, blocks: [usize; 4]) {
    layers.convolution("conv1", (3, 64), 7, 112);
    let mut width = 64;
    for (stage, count) in blocks.into_iter().enumerate() {
        let (inner, side) = (64 << stage, 56 >> stage);
        let outer = 4 * inner;
        for block in 0..count {
            let name = format!("layer{}.{block}", stage + 1);
            // The second convolution of a stage's first block halves the picture.
            let before = if block == 0 && stage > 0 {
                2 * side
            } else {
                side
            };
            layers.convolution(&format!("{name}.conv1"), (width, inner), 1, before);
            layers.convolution(&format!("{name}.conv2"), (inner, inner), 3, side);
            layers.convolution(&format!("{name}.conv3"), (inner, outer), 1, side);
            if block == 0 {
                layers.convolution(&format!("{name}.downsample"), (width, outer), 1, side);
            }
            width = outer;
        }
    }
    layers.linear("fc", width, 1000, 1);
}

/// Sixteen layers of width 410, segments of 150 with as many remembered, one table for words in and out.
fn transformer_xl(layers: &mut Layers) {
    const WORDS: usize = 267_735;
    let (width, inner, segment) = (410, 2100, 150);
    let all = 2 * segment;
    layers.push("embedding.weight".to_owned(), WORDS * width, 0.0);
    for bias in ["r_w_bias", "r_r_bias"] {
        layers.vector(bias.to_owned(), width, segment);
    }
    for layer in 0..16 {
        let name = |part: &str| format!("layers.{layer}.{part}");
        layers.matrix(name("attention.qkv.weight"), width, 3 * width, all);
        layers.matrix(name("attention.r.weight"), width, width, all);
        layers.push(
            name("attention"),
            0,
            3.0 * 2.0 * (segment * all * width) as f64,
        );
        layers.matrix(name("attention.out.weight"), width, width, segment);
        layers.layer_norm(&name("attention.norm"), width, segment);
        layers.linear(&name("ff.0"), width, inner, segment);
        layers.linear(&name("ff.3"), inner, width, segment);
        layers.layer_norm(&name("ff.norm"), width, segment);
    }
    // The adaptive softmax: its head has 20,000 words and three clusters.
    layers.vector("softmax.bias".to_owned(), WORDS, 1);
    layers.matrix("softmax.clusters.weight".to_owned(), width, 3, segment);
    layers.vector("softmax.clusters.bias".to_owned(), 3, segment);
    layers.push(
        "softmax".to_owned(),
        0,
        2.0 * (20_003 * width * segment) as f64,
    );
}

/// Contexts of 1024 tokens, one table for tokens in and out.
fn gpt2(layers: &mut Layers, depth: usize, width: usize) {
    const TOKENS: usize = 50_257;
    const CONTEXT: usize = 1024;
    layers.push("wte.weight".to_owned(), TOKENS * width, 0.0);
    layers.push("wpe.weight".to_owned(), CONTEXT * width, 0.0);
    for layer in 0..depth {
        let name = |part: &str| format!("h.{layer}.{part}");
        layers.layer_norm(&name("ln_1"), width, CONTEXT);
        layers.linear(&name("attn.c_attn"), width, 3 * width, CONTEXT);
        layers.push(
            name("attn"),
            0,
            2.0 * 2.0 * (CONTEXT * CONTEXT * width) as f64,
        );
        layers.linear(&name("attn.c_proj"), width, width, CONTEXT);
        layers.layer_norm(&name("ln_2"), width, CONTEXT);
        layers.linear(&name("mlp.c_fc"), width, 4 * width, CONTEXT);
        layers.linear(&name("mlp.c_proj"), 4 * width, width, CONTEXT);
    }
    layers.layer_norm("ln_f", width, CONTEXT);
    let head = 2.0 * (TOKENS * width * CONTEXT) as f64;
    layers.push("lm_head".to_owned(), 0, head);
}

/// Contexts of 2048 tokens.
fn llama_layer(layers: &mut Layers) {
    let (width, inner, context) = (4096, 11_008, 2048);
    layers.vector("input_layernorm.weight".to_owned(), width, context);
    for part in ["q", "k", "v"] {
        layers.matrix(
            format!("self_attn.{part}_proj.weight"),
            width,
            width,
            context,
        );
    }
    let attention = 2.0 * 2.0 * (context * context * width) as f64;
    layers.push("self_attn".to_owned(), 0, attention);
    layers.matrix("self_attn.o_proj.weight".to_owned(), width, width, context);
    layers.vector("post_attention_layernorm.weight".to_owned(), width, context);
    for part in ["gate", "up"] {
        layers.matrix(format!("mlp.{part}_proj.weight"), width, inner, context);
    }
    layers.matrix("mlp.down_proj.weight".to_owned(), inner, width, context);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(model: Model) -> usize {
        model.layers().iter().map(|layer| layer.elements).sum()
    }

    /// The numbers of parameters of the public implementations (torchvision, Transformers).
    #[test]
    fn models_have_the_published_numbers_of_parameters() {
        assert_eq!(parameters(Model::Resnet152), 60_192_808);
        assert_eq!(parameters(Model::Gpt2), 124_439_808);
        assert_eq!(parameters(Model::Gpt2Xl), 1_557_611_200);
        // 6,738,415,616 are 32 layers, two tables of 32,000 tokens and a norm.
        let tables = 2 * 32_000 * 4096 + 4096;
        assert_eq!(32 * parameters(Model::Llama7bLayer) + tables, 6_738_415_616);
        // "151M" in the paper's table 1.
        let millions = parameters(Model::TransformerXl) as f64 / 1e6;
        assert!((150.5..151.5).contains(&millions), "{millions}");
    }

    /// 11.3 billion multiplications and additions in the paper's table 1, which counts a pair as one.
    #[test]
    fn a_resnet_has_the_published_work() {
        let work: f64 = Model::Resnet152.layers().iter().map(|l| l.work).sum();
        assert!((11.2e9..11.7e9).contains(&(work / 2.0)), "{work:e}");
    }

    #[test]
    fn models_are_named() {
        for (name, model) in Model::ALL {
            assert_eq!(name.parse(), Ok(model));
            assert_eq!(model.to_string(), name);
        }
        let error = "resnet50".parse::<Model>().unwrap_err();
        assert!(error.contains("resnet152, transformer-xl"), "{error}");
    }
}
