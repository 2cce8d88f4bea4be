# Runs in a laboratory machine, on the host's file system: brings up the NICs with an RDMA device each, then the command.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root SHARE=/mnt
argument() { sed -n "s/.* lab\.$1=\([0-9]*\).*/\1/p" /proc/cmdline; }
NODE=$(argument node) NODES=$(argument nodes) NICS=$(argument nics)
export NODE NODES NICS
ulimit -l unlimited
hostname "node$NODE"
ip link set lo up
nic=0
while [ "$nic" -lt "$NICS" ]; do
  ip link set "eth$nic" mtu 9000
  ip addr add "10.$((77 + nic)).0.$((NODE + 1))/24" dev "eth$nic"
  ip link set "eth$nic" up
  rdma link add "rxe$nic" type rxe netdev "eth$nic" || echo "lab: no RDMA device on eth$nic" >>"/mnt/node$NODE.err"
  nic=$((nic + 1))
done
echo ready >"/mnt/.lab/ready$NODE"
sh /mnt/.lab/command.sh >>"/mnt/node$NODE.out" 2>>"/mnt/node$NODE.err" </dev/null
echo $? >"/mnt/.lab/exit$NODE.new"
mv "/mnt/.lab/exit$NODE.new" "/mnt/.lab/exit$NODE"
sync
echo o >/proc/sysrq-trigger
sleep 60
