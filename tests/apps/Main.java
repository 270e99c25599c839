// Threads, locks, garbage collection, hot loops for the JIT compiler. One line per turn.
import java.util.*;
import java.util.concurrent.*;

public class Main {
    static long mix(long n) {
        n += 0x9e3779b97f4a7c15L;
        n = (n ^ (n >>> 30)) * 0xbf58476d1ce4e5b9L;
        n = (n ^ (n >>> 27)) * 0x94d049bb133111ebL;
        return n ^ (n >>> 31);
    }

    static long work(int turn, int part) {
        long sum = 0;
        Map<Long, String> table = new HashMap<>();
        for (int i = 0; i < 40000; i++) {
            long n = mix(turn * 1000003L + part * 101L + i);
            table.put(n % 5003, Long.toHexString(n));
            sum += n;
        }
        for (Map.Entry<Long, String> e : new TreeMap<>(table).entrySet()) sum = sum * 31 + e.getValue().hashCode();
        return sum;
    }

    public static void main(String[] args) throws Exception {
        int turns = args.length > 0 ? Integer.parseInt(args[0]) : 130;
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<byte[]> garbage = new ArrayList<>();
        for (int turn = 0; turn < turns; turn++) {
            List<Future<Long>> parts = new ArrayList<>();
            for (int p = 0; p < 4; p++) {
                final int t = turn, part = p;
                parts.add(pool.submit(() -> work(t, part)));
            }
            long sum = 0;
            for (Future<Long> f : parts) sum = sum * 17 + f.get();
            garbage.add(new byte[1 << 20]);
            if (garbage.size() > 20) garbage.subList(0, 10).clear();
            System.out.println(turn + " " + Long.toHexString(sum) + " " + garbage.size());
            System.out.flush();
            Thread.sleep(5);
        }
        pool.shutdown();
        if (!pool.awaitTermination(10, TimeUnit.SECONDS)) throw new IllegalStateException("pool");
        System.out.println("PASS");
    }
}
