package rdmacm

import (
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// LocalAddr returns the id's own address, the zero value while it has none, or
// has one of InfiniBand's.
func (id *ID) LocalAddr() netip.AddrPort { return address(id, librdmacm.GetLocalAddr, addrPort) }

// RemoteAddr returns the peer's address, the zero value while there is none, or
// if it is one of InfiniBand's.
func (id *ID) RemoteAddr() netip.AddrPort { return address(id, librdmacm.GetPeerAddr, addrPort) }

// LocalIBAddr returns the id's own address of InfiniBand's, the zero value if it
// has none.
func (id *ID) LocalIBAddr() IBAddr { return address(id, librdmacm.GetLocalAddr, ibAddr) }

// RemoteIBAddr returns the peer's address of InfiniBand's, the zero value if it has
// none.
func (id *ID) RemoteIBAddr() IBAddr { return address(id, librdmacm.GetPeerAddr, ibAddr) }

func address[T any](
	id *ID, get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error), read func(*librdmacm.Sockaddr) T,
) (addr T) {
	if id.self().Use() != nil {
		return addr
	}
	defer id.object.Done()
	// Both a call of C and an event can be changing it.
	id.mu.Lock()
	defer id.mu.Unlock()
	defer id.lockChannel()()
	return addressOf(id, get, read)
}

// addressOf is address for a caller that holds id.mu and the channel's.
func addressOf[T any](
	id *ID, get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error), read func(*librdmacm.Sockaddr) T,
) (addr T) {
	if sa, err := get(id.raw); err == nil {
		addr = read(sa)
	}
	return addr
}

// describe names the id by its addresses as far as it has any. The caller holds
// id.mu.
func (id *ID) describe() string {
	defer id.lockChannel()()
	local, peer := addressOf(id, librdmacm.GetLocalAddr, addrPort), addressOf(id, librdmacm.GetPeerAddr, addrPort)
	switch {
	case peer.IsValid() && peer.Port() != 0 && local.IsValid():
		return fmt.Sprintf("%v to %v", local, peer)
	case peer.IsValid() && peer.Port() != 0:
		return "to " + peer.String()
	case local.IsValid():
		return local.String()
	}
	if ib := addressOf(id, librdmacm.GetLocalAddr, ibAddr); ib != (IBAddr{}) {
		return ib.String()
	}
	return "unbound id"
}

// name is describe for a caller that holds no lock, and does not wait for C.
func (id *ID) name() string {
	if id == nil {
		return ""
	}
	if id.self().Use() != nil {
		return id.object.Name()
	}
	defer id.object.Done()
	if !id.mu.TryLock() {
		return id.object.Name()
	}
	defer id.mu.Unlock()
	return id.describe()
}
