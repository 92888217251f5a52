package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// RawSegment returns n bytes at an address that requests name by a local key,
// for memory that something else than this package has registered. Only the
// device checks whether the key, the address and the memory are right, and
// nothing keeps the memory there. It has no Bytes and no Remote, and cannot be
// sent inline. It allocates; Sub of what it returns does not.
func RawSegment(addr uint64, n int, lkey uint32) Segment {
	mr := &MR{raw: &libibverbs.Mr{Lkey: lkey}, region: region{start: addr, size: n, lkey: lkey, keyOnly: true}}
	mr.itself = mr
	mr.object.InitUnlisted(fmt.Sprintf("raw memory with key %#x", lkey))
	return mr.All()
}

// noBytes stands for the memory of no bytes.
var noBytes byte

// InlineBytes returns any memory of this process for requests with SendInline;
// without, it is refused. The batch copies it when the request is added or
// changed, so that it can be used for something else at once. A request can
// have up to 4096 bytes so, if the queue pair was made for as many; see
// QPConfig.MaxInline.
func InlineBytes(b []byte) Segment {
	if len(b) == 0 {
		return Segment{inline: &noBytes}
	}
	return Segment{inline: unsafe.SliceData(b), n: len(b)}
}
