// Colour tables that people with any kind of colour blindness can read: 64 samples, as hex, of matplotlib's
// `cividis`, `viridis_r` and `PuOr_r` (CC0), read off with colormaps[name](linspace(0, 1, 64)); of cividis without its
// darkest tenth, on which no shape could be seen.

const CIVIDIS = [
  '0833701436701a386f213b6e273e6e2b406d31436d35456c39486c3d4a6c414d6c444f6c48526c4c556c4f576c535a6d',
  '565c6d595e6e5d616e60646f6366706669706a6c716c6e727071737374757676767979777d7c787f7e78838179868379',
  '8a86788e8978918b78948e779892779b94769f9775a39a74a69c74aaa073aea371b1a570b6a96fbaac6dbdae6cc1b26a',
  'c5b568c8b866cdbb63d1bf61d4c15fd9c55cddc858e0cb56e5cf52e9d34eedd54af1d945f6dd3ff9e03afee434fee838',
].join('');

const VIRIDIS_REVERSED = [
  'fde725f4e61eeae51adfe318d5e21acae11fc0df25b5de2baadc32a0da3995d8408bd64681d34d77d1536ece5865cb5e',
  '5ac86452c5694ac16d42be713bbb7535b7792fb47c2ab07f26ad8123a98321a5851fa1871f9e891f9a8a1f968b20928c',
  '218e8d238a8d24868e26828e277f8e297b8e2a778e2c738e2d708e2f6c8e31688e32648e34608d365c8d38588c3a538b',
  '3d4e8a3e4989404588424086443b8445378146327e472d7b482878482374481d6f48186a471365470d6046075a440154',
].join('');

const PURPLE_TO_ORANGE = [
  '2d004b330655390c5e3f12684518714c1f7b522584582e8c5f3a916646976d529c745ea27b6aa88275ad8a7eb39287b9',
  '9b92c1a39bc7aba3cdb3acd2b9b3d6bfbbdac5c2decbc9e2d1d1e6d7d8eadcddece1e2eee5e7f0eaebf2eff0f4f4f4f6',
  'f8f5f1f9f1e6faeedcfbead2fce6c8fde3befedeb3fed8a6fed299fdcc8cfdc57ffdbf72fdb965f9b158f4a84cf0a03f',
  'ea9530e68d23e18417db7d12d47610cd700ec6690cbe630ab75c07b05606a85206a04d079749078f44078740087f3b08',
].join('');

// Regions, told apart by everyone (Okabe and Ito); the first is for nodes of no region.
export const REGION_COLOURS = ['#d6d6d6', '#c9c3b8', '#0072b2', '#d55e00', '#e69f00', '#009e73', '#56b4e9', '#cc79a7'];

/** A table as bytes, red green blue alpha. */
function bytes(hex) {
  const table = new Uint8Array((hex.length / 6) * 4).fill(255);
  for (let at = 0; at < hex.length; at += 2) {
    const byte = at / 2;
    table[Math.floor(byte / 3) * 4 + (byte % 3)] = parseInt(hex.slice(at, at + 2), 16);
  }
  return table;
}

export const POTENTIAL = bytes(CIVIDIS);
export const ACTIVATION = bytes(VIRIDIS_REVERSED);
export const DIFFERENCE = bytes(PURPLE_TO_ORANGE);

/** The table as a colour gradient for a 2-D canvas. */
export function gradient(context, table, x0, x1) {
  const ramp = context.createLinearGradient(x0, 0, x1, 0);
  const n = table.length / 4;
  for (let i = 0; i < n; i++) {
    ramp.addColorStop(i / (n - 1), `rgb(${table[4 * i]},${table[4 * i + 1]},${table[4 * i + 2]})`);
  }
  return ramp;
}

/** Regions beyond the colours there are look like those of none. */
export function regionColour(number) {
  return REGION_COLOURS[number] ?? REGION_COLOURS[0];
}

export function regionTable() {
  return bytes(REGION_COLOURS.map((colour) => colour.slice(1)).join(''));
}
