/** The shell programs that fill volumes with images. Each may be cut at any moment, and so may the power: the next one copes with that. */
import { inEngine } from './engine-program.ts';

const podman = `podman --root ${inEngine.images} --runroot $XDG_RUNTIME_DIR/fill`;

/**
 * Loads what comes from standard input under a name, unless it is there: it says a word if it wants it. A load that was interrupted is
 * repeated by the next one. It has its name only once it is on disk: Podman syncs no layer, and after a power cut every agent would get half an image.
 *
 * Podman skips layers that it knows, so it must forget those that such a load left: `filling` is what it knew before. Then it makes them anew.
 */
export const fillPodman = `name=$0
${podman} image exists "$name" && exit
echo wanted
cd ${inEngine.images} || exit
known='overlay-layers/layers.json overlay-images/images.json'
[ ! -e filling ] || for file in $known; do
  if [ -e "filling/$file" ]; then cp -a "filling/$file" before && mv before "$file"; else rm -f "$file"; fi || exit
done
rm -rf new && mkdir new || exit
for file in $known; do [ ! -e "$file" ] || cp -a --parents "$file" new || exit; done
sync -f . 2>/dev/null || sync || exit
rm -rf filling && mv new filling || exit
sync -f . 2>/dev/null || sync || exit
said=$(${podman} load -q) || exit
sync -f ${inEngine.images} 2>/dev/null || sync || exit
rm -rf filling
sync -f . 2>/dev/null || sync || exit
${podman} tag "\${said##*: }" "$name"`;

/**
 * The same for a Docker Engine: `$0` is the number of the image in its volume, `$1` its name, and `$2` not empty for the last one. It
 * syncs no layer either. So a volume in which not all images are on disk is emptied, and the first image begins it anew.
 */
export const fillDocker = `set -e; cd ${inEngine.images}; [ ! -e complete ] || exit 0
if [ "$0" = 0 ]; then
  rm -rf new seed
  # Only root of the namespace may remove what users of images own.
  [ ! -e docker ] || rootlesskit --state-dir=$XDG_RUNTIME_DIR/emptying rm -rf ${inEngine.images}/docker
elif [ ! -e seed ]; then
  echo 'somebody has removed the volume meanwhile' >&2; exit 1
fi
echo wanted
export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/fill.sock
rootlesskit --state-dir=$XDG_RUNTIME_DIR/rootlesskit --net=host --copy-up=/run sh -c '
rm -f /run/docker /run/containerd /run/xtables.lock
exec dockerd -H $DOCKER_HOST --log-level error --data-root ${inEngine.images}/docker --exec-root $XDG_RUNTIME_DIR/docker \
  --pidfile $XDG_RUNTIME_DIR/docker.pid --storage-driver overlay2 --bridge none --iptables=false --ip6tables=false' &
until docker image ls -q >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
said=$(docker load -q)
docker tag "\${said##*: }" "$1"
kill "$(cat $XDG_RUNTIME_DIR/docker.pid)"; wait $! || :
rm -rf new seed; mkdir -m 710 new new/overlay2; cp -a docker/image new
cd docker/overlay2; cp -a --parents l */[cl]* ../../new/overlay2
for files in */diff; do
  mkdir "../../new/overlay2/\${files%diff}work"; ln -s "${inEngine.ready}/docker/overlay2/$files" "../../new/overlay2/$files"
done
cd ../..; mv new seed; sync -f . 2>/dev/null || sync
[ ! "$2" ] || : >complete`;
