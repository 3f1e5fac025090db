/** What always helps where no image can be chosen. */
export const pinIt = 'Pin an image: write its name as "image" of the pool.';
