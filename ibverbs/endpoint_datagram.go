package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// CreateDestination makes the address handle for datagrams from a queue pair of
// type UD to a peer's, with what Endpoint gave for both, and returns it with the
// peer's number and key. The caller closes its AH when the datagrams have
// completed. CreateAH can say more of the way. It waits as CreateAH does; see
// ibv_create_ah(3).
func (pd *PD) CreateDestination(local, peer QPAddr) (Destination, error) {
	if err := pd.self().Use(); err != nil {
		return Destination{}, err
	}
	defer pd.object.Done()
	fail := func(err error) (Destination, error) {
		return Destination{}, cerr.Argument("PD.CreateDestination", pd.object.Name(), err)
	}
	if err := local.check(); err != nil {
		return fail(fmt.Errorf("local %w", err))
	}
	if err := peer.check(); err != nil {
		return fail(fmt.Errorf("peer's %w", err))
	}
	if peer.QKey == 0 {
		return fail(cerr.Invalid("peer's endpoint is not of type %s: it has no QKey", QPTypeUD))
	}
	port, err := pd.device.QueryPort(local.Port)
	if err != nil {
		return Destination{}, err
	}
	way := local.address(peer, port, ConnectOptions{HopLimit: defaultHopLimit})
	ah, err := pd.CreateAH(ahAttrOf(&way))
	if err != nil {
		return Destination{}, explainGIDs(err, local, peer)
	}
	return Destination{AH: ah, QPNum: peer.QPNum, QKey: peer.QKey}, nil
}
