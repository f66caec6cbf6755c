//! scratch
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ids = [504u32, 3575, 282, 4649, 314, 260, 2240, 282];
    let t = std::time::Instant::now();
    let l = nestling::logits(Path::new(&args[1]), &ids, 2).unwrap();
    println!("{:?} {:?}", t.elapsed(), l.row(7)[..8].to_vec());
    std::fs::write("/tmp/l.npy", l.to_npy()).unwrap();
    let t = std::time::Instant::now();
    let g = nestling::generate(
        Path::new(&args[1]),
        nestling::Prompt::Chat("What is the capital of France?"),
        nestling::GenerateOptions {
            max_tokens: 40,
            sampling: nestling::Sampling::default(),
            threads: 2,
        },
        &|t| print!("{t}"),
    )
    .unwrap();
    println!("\n{:?} {:?}", t.elapsed(), g.new_ids);
}
